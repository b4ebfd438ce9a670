"""`drafter evaluate`: the figures of a report, prompts that are resumed, and refusals in one line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest
import torch

from curation.expansion import taus_of
from tests.training.asking_inputs import make_drafter, write_run, write_set, write_target
from training import cli, evaluation
from training.acceptance import PromptRounds, acceptance, bootstrap
from training.drafter import DFlashDrafter
from training.evaluate import Measured
from training.evaluation import EvaluateOptions, evaluate, is_lossless
from training.evaluation_page import render
from training.prompt_journal import PromptJournal
from training.prompts import Chat, file_prompts, heldout_prompts


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("asking")
    target = write_target(folder / "target")
    return SimpleNamespace(
        target=target, data=write_set(folder / "tokenized_v1", target), run=write_run(folder / "run", make_drafter())
    )


def options(places: SimpleNamespace, **changes: object) -> EvaluateOptions:
    base = {"run": places.run, "data": places.data, "max_new_tokens": 14, "modes": ("chain", "tree:4")}
    return EvaluateOptions(**(base | changes))


@pytest.fixture(scope="module")
def report(places: SimpleNamespace) -> dict:
    return evaluate(options(places, baselines=("untrained", "prompt-lookup")))


def test_acceptance_of_known_rounds_is_what_one_computes_by_hand() -> None:
    found = acceptance([PromptRounds(7, [2, 0, 2], False), PromptRounds(4, [0, 3], True), PromptRounds(0, [], False)])
    assert (found.num_prompts, found.num_rounds, found.num_tokens) == (3, 5, 11)
    assert found.tau == 11 / 5
    assert found.tau_per_prompt == (7 / 3 + 4 / 2) / 2
    assert found.histogram == [2, 0, 2, 1]
    # Five rounds judge slot 1, three get to slot 2, three to slot 3; the cut round says nothing about slot 4.
    assert found.slot_acceptance == [3 / 5, 3 / 3, 1 / 3]
    assert found.tau_interval is None


def test_a_round_that_accepts_every_slot_says_nothing_of_one_more() -> None:
    rounds = [PromptRounds(8, [3, 3], False)]
    assert acceptance(rounds, num_slots=3).slot_acceptance == [1.0, 1.0, 1.0]
    assert acceptance(rounds, num_slots=7).slot_acceptance == [1.0, 1.0, 1.0, 0.0]


def test_intervals_resample_prompts_and_not_rounds() -> None:
    alike = [PromptRounds(20, [1] * 10, False)] * 8
    assert acceptance(alike).tau_interval == (2.0, 2.0)
    unlike = [PromptRounds(10, [0] * 10, False), PromptRounds(40, [3] * 10, False)] * 4
    low, high = acceptance(unlike).tau_interval or (0.0, 0.0)
    assert low < 2.0 and high > 3.0
    assert bootstrap(4, lambda picks: picks.mean(axis=1)) is None


def test_bootstrap_intervals_hold_the_mean_about_as_often_as_they_say() -> None:
    draws = torch.distributions.Exponential(1.0).sample((200, 40)).numpy()
    held = 0
    for row in draws:
        low, high = bootstrap(40, lambda picks, row=row: row[picks].mean(axis=1)) or (0.0, 0.0)
        held += low <= 1.0 <= high
    assert 0.86 <= held / 200 <= 0.99


def test_a_report_holds_every_prompt_mode_and_condition(report: dict, places: SimpleNamespace) -> None:
    assert set(report["results"]) == {"trained", "untrained", "prompt-lookup"}
    assert set(report["results"]["trained"]) == {"chain", "tree:4"}
    assert set(report["results"]["prompt-lookup"]) == {"chain"}
    assert report["texts"] == report["same_text"] == 6 * 2
    assert report["lossless"] is True
    assert report["by_domain"] == report["results"]["trained"]["chain"]["by_domain"]
    assert set(report["by_domain"]) == {"code", "math"}
    assert set(report["results"]["trained"]["chain"]["by_source"]) == {"code_source", "math_source"}
    conditions = report["conditions"]
    assert conditions["temperature"] == 0 and conditions["dtype"] == "float32" and conditions["max_new_tokens"] == 14
    assert conditions["end_token_ids"] == [2] and conditions["target"] == str(places.target)
    assert {"pooling", "chat_template_kwargs", "turns", "wording", "prompts_sha256", "versions"} <= set(conditions)


def test_tau_of_the_report_is_that_of_its_own_rounds(report: dict) -> None:
    mine = [one for one in report["prompts"] if (one["drafter"], one["mode"]) == ("trained", "tree:4")]
    tokens, rounds = sum(one["num_tokens"] - 1 for one in mine), sum(len(one["accepted"]) for one in mine)
    assert report["results"]["trained"]["tree:4"]["all"]["tau"] == tokens / rounds
    assert sum(report["results"]["trained"]["tree:4"]["all"]["histogram"]) == rounds


def test_replayed_baselines_take_the_rounds_that_decoding_them_takes(places: SimpleNamespace, tmp_path: Path) -> None:
    """The untrained baseline of a report is the drafter with fresh weights: decoded as if it were the trained one."""
    untrained = DFlashDrafter(make_drafter().config)
    untrained.init_weights(torch.Generator().manual_seed(0))
    run = write_run(tmp_path / "untrained", untrained)
    report = evaluate(options(places, run=run))
    by_name = {
        name: [
            (one["prompt_id"], one["mode"], one["accepted"], one["cut"])
            for one in report["prompts"]
            if one["drafter"] == name
        ]
        for name in ("trained", "untrained")
    }
    assert by_name["trained"] == by_name["untrained"]
    assert [one["replayed"] for one in report["prompts"][:5]] == [False, False, False, True, True]
    assert {speed["drafter"] for speed in report["speeds"]} == {"plain", "trained"}


def test_planning_reads_the_report(report: dict) -> None:
    taus = taus_of(orjson.loads(Path(report["path"]).read_bytes()))
    assert taus == {domain: found["tau"] for domain, found in report["by_domain"].items()}


def test_the_page_escapes_what_data_says_and_runs_no_script(report: dict) -> None:
    hostile = json.loads(json.dumps(report).replace("code_source", "<script>alert(1)</script>"))
    shown = render(hostile)
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert shown.count("<svg") >= 5
    assert "http" not in shown


def press_ctrl_c_after_two_prompts(folder: Path) -> None:
    while not any(path.read_text().count("\n") >= 2 for path in folder.glob(".evaluation-*.jsonl")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.chaos
def test_a_stopped_evaluation_goes_on_where_it_was(places: SimpleNamespace, tmp_path: Path) -> None:
    asked = options(places, modes=("chain",), max_new_tokens=30, out=tmp_path / "evaluation.json")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes start with it ignored
    threading.Thread(target=press_ctrl_c_after_two_prompts, args=(tmp_path,), daemon=True).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(asked)
    finally:
        signal.signal(signal.SIGINT, before)
    (journal,) = tmp_path.glob(".evaluation-*.jsonl")
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert 2 <= len(entries) < 6
    entries[0]["found"][0]["target_s"] = 123.0
    torn = json.dumps(entries[1])[:40]
    journal.write_text(json.dumps(entries[0]) + "\n" + torn)
    report = evaluate(asked)
    assert report["prompts"][0]["target_s"] == 123.0
    assert len({one["prompt_id"] for one in report["prompts"]}) == 6
    assert not list(tmp_path.glob(".evaluation-*"))


def test_other_conditions_start_another_journal(tmp_path: Path) -> None:
    PromptJournal(tmp_path, "evaluation", {"temperature": 0}).add("a", 1)
    assert PromptJournal(tmp_path, "evaluation", {"temperature": 0}).done == {"a": 1}
    assert PromptJournal(tmp_path, "evaluation", {"temperature": 1}).done == {}


def test_a_text_that_differs_by_more_than_a_tie_is_not_lossless(report: dict) -> None:
    same = Measured(**report["prompts"][1])
    tie = Measured(**asdict(same) | {"same_text": False, "tie_gap": 2e-5})
    wrong = Measured(**asdict(same) | {"same_text": False, "tie_gap": 0.3})
    greedy = report["conditions"]
    assert is_lossless(greedy, [same, tie]) is True
    assert is_lossless(greedy, [same, wrong]) is False
    assert is_lossless(greedy | {"dtype": "bfloat16"}, [wrong]) is None
    assert is_lossless(greedy | {"temperature": 0.7}, [wrong]) is None
    lines = evaluation.say_losslessness(
        report | {"lossless": False, "different": [{"prompt": "p", "drafter": "d", "mode": "chain", "tie_gap": 0.3}]}
    )
    assert "NOT a tie" in lines[-1]


def test_heldout_prompts_are_drawn_by_seed_and_end_before_the_answer(places: SimpleNamespace) -> None:
    prompts = heldout_prompts(places.data, most_per_domain=2, seed=0)
    assert [prompt.domain for prompt in prompts] == ["code", "code", "math", "math"]
    assert all(len(prompt.token_ids) == 6 for prompt in prompts)
    assert prompts == heldout_prompts(places.data, most_per_domain=2, seed=0)


class LetterTokenizer:
    """One token per character, and a template that marks who speaks."""

    def apply_chat_template(self, messages, add_generation_prompt, tokenize, return_dict, enable_thinking=False):
        text = "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]" + "<think>" * enable_thinking
        return {"input_ids": [ord(letter) for letter in text]}

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids))


CHAT = Chat(LetterTokenizer(), {})
LAYOUTS = {
    "mt_bench.jsonl": ('{"question_id": 81, "category": "writing", "turns": ["Hi.", "Again."]}', "writing", "Hi."),
    "HumanEval.jsonl": ('{"task_id": "HumanEval/0", "prompt": "def f():", "test": "x"}', "humaneval", "def f():"),
    "mbpp.jsonl": ('{"text": "Write f.", "code": "def f(): 1", "task_id": 601}', "mbpp", "Write f."),
    "gsm8k.jsonl": ('{"question": "How many?", "answer": "#### 3"}', "gsm8k", "How many?"),
    "math.json": ('[{"problem": "1+1", "solution": "2"}]', "math", "1+1"),
    "mgsm_de.tsv": ("Wie viele?\t18", "mgsm_de", "Wie viele?"),
    "alpaca.json": ('[{"instruction": "Sort.", "input": "3 1", "output": "1 3"}]', "alpaca", "Sort.\n3 1"),
    "chat.jsonl": (
        '{"conversations": [{"from": "human", "value": "Yo"}, {"from": "gpt", "value": "No"}]}',
        "chat",
        "Yo",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_evaluation_files_are_read_as_they_are(tmp_path: Path, name: str) -> None:
    content, domain, asked = LAYOUTS[name]
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    (prompt,) = file_prompts(tmp_path / f"{name}.gz", CHAT)
    assert prompt.domain == domain
    assert CHAT.tokenizer.decode(prompt.token_ids, True) == f"[user]{asked}[assistant]"


def test_later_turns_are_asked_on_the_targets_own_answer(tmp_path: Path) -> None:
    (tmp_path / "mt_bench.jsonl").write_text(LAYOUTS["mt_bench.jsonl"][0])
    (first,) = file_prompts(tmp_path / "mt_bench.jsonl", CHAT)
    second = CHAT.next_turn(first, [ord(letter) for letter in "Hello!"])
    assert second is not None and second.id == "mt_bench/81#2"
    assert CHAT.tokenizer.decode(second.token_ids, True) == "[user]Hi.[assistant]Hello![user]Again.[assistant]"
    assert CHAT.next_turn(second, []) is None


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'{"question": "x"}\n{"question":', "line 2: not JSON"),
        ("a.jsonl", b'{"solution": "x"}', "row 1 asks nothing"),
        ("a.jsonl", b"[1, 2]", "expected an object"),
        ("a.jsonl.gz", b"no gzip", "damaged"),
        ("a.jsonl", b"\xff\xfe", "is not UTF-8"),
    ],
)
def test_a_file_that_asks_nothing_is_refused_by_name(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=said):
        file_prompts(tmp_path / name, CHAT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"modes": ("forest",)}, "expected `chain`, or `tree:k`"),
        ({"run": Path("nowhere")}, "no run nowhere; `train` makes one"),
        ({"run": None}, "give a run"),
        ({"data": Path("nowhere")}, "no set nowhere"),
        ({"data": None}, "nothing to ask"),
        ({"data": None, "prompts": (Path("x.jsonl"),)}, "--target"),
        ({"target": "nowhere/at-all"}, "neither a folder here nor to be had"),
        ({"thinking": "on"}, "rendered already"),
    ],
)
def test_what_is_missing_is_said_in_one_line(places: SimpleNamespace, changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        evaluate(options(places, **changes))
    assert "\n" not in str(error.value)


def test_a_set_without_heldout_rows_is_refused(places: SimpleNamespace, tmp_path: Path) -> None:
    bare = write_set(tmp_path / "bare", places.target, heldout_rows=0)
    with pytest.raises(ValueError, match="held-out share"):
        evaluate(options(places, data=bare))


def test_a_drafter_of_another_target_is_refused(places: SimpleNamespace, tmp_path: Path) -> None:
    drafter = make_drafter()
    wider = drafter.config.model_copy(update={"vocab_size": 48})
    drafter.config = wider
    with pytest.raises(ValueError, match="vocab_size 48, the target 40"):
        evaluate(options(places, run=write_run(tmp_path / "other", drafter)))


def test_the_command_prints_the_table_and_ends_with_zero(
    places: SimpleNamespace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = f"--run {places.run} --data {places.data} --max-new-tokens 8 --out {tmp_path / 'evaluation.json'}"
    monkeypatch.setattr(sys, "argv", ["drafter", "evaluate", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        cli.drafter_main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "tau, tokens per target forward (chain)" in said
    assert "6 of 6 texts equal plain decoding token for token" in said
    assert "temperature 0" in said


def test_the_command_ends_with_two_where_a_person_erred(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["drafter", "evaluate", "--run", "nowhere", "--data", "nowhere"])
    with pytest.raises(SystemExit) as ended:
        cli.drafter_main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.strip() == "error: no run nowhere; `train` makes one"

"""`drafter compare`: replay is decoding, differences are paired, and noise is called noise."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.training.asking_inputs import make_drafter, write_run, write_set, write_target
from training.acceptance import PromptRounds, difference
from training.compare import CompareOptions, compare, report_of, say_differences
from training.comparison_page import render
from training.decode import Limits, decode_drafted, decode_plain
from training.export import ExportOptions, export
from training.proposers import DFlashProposer, PromptLookup
from training.replay import replay, text_features
from training.target import Target


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("comparing")
    target = write_target(folder / "target")
    ours = write_run(folder / "ours", make_drafter(seed=1))
    theirs = folder / "theirs-DFlash"
    other = write_run(folder / "other", make_drafter(seed=2, num_layers=1, block_size=4, num_features=2))
    export(ExportOptions(run=other, out=theirs, dtype="float32"))
    return SimpleNamespace(target=target, data=write_set(folder / "tokenized_v1", target, 12), ours=ours, theirs=theirs)


@pytest.fixture(scope="module")
def report(places: SimpleNamespace) -> dict:
    return compare(
        CompareOptions(
            contestants=(places.ours, places.theirs), data=places.data, max_prompts_per_domain=6, max_new_tokens=12
        )
    )


@pytest.mark.lossless
@pytest.mark.parametrize("tree_nodes", [None, 5])
def test_replaying_a_greedy_text_takes_the_rounds_that_decoding_takes(
    places: SimpleNamespace, tree_nodes: int | None
) -> None:
    target = Target.load(str(places.target), torch.float32)
    prompt, dice = [3, 9, 4, 9, 4], torch.Generator().manual_seed(0)
    for proposer in (DFlashProposer(target, make_drafter()), PromptLookup(40, 5)):
        for budget in (1, 2, 9, 20):
            limits = Limits(max_new_tokens=budget)
            text = decode_plain(target, prompt, limits, dice).token_ids
            nodes = None if isinstance(proposer, PromptLookup) else tree_nodes
            decoded = decode_drafted(target, proposer, prompt, limits, dice, nodes)
            found = replay(proposer, prompt, text, text_features(target, prompt, text, proposer.layer_ids), nodes)
            assert found.accepted == [r.accepted for r in decoded.rounds]
            assert found.cut == (bool(decoded.rounds) and decoded.rounds[-1].cut)
            assert found.gained_tokens == budget - 1


def test_a_report_compares_every_contestant_on_the_same_prompts(report: dict) -> None:
    assert list(report["acceptance"]) == ["ours", "theirs-DFlash", "untrained", "prompt-lookup"]
    assert {found["one"] for found in report["differences"]} == {"ours"}
    assert [found["domain"] for found in report["differences"][:3]] == ["code", "math", "all"]
    assert all(set(turn["rounds"]) == set(report["acceptance"]) for turn in report["prompts"])
    gained = [{rounds["gained_tokens"] for rounds in turn["rounds"].values()} for turn in report["prompts"]]
    assert all(len(one) == 1 for one in gained)
    one, other = (report["acceptance"][name]["all"]["tau"] for name in ("ours", "theirs-DFlash"))
    assert report["differences"][2]["delta"] == pytest.approx(one - other)


def test_the_page_draws_it(report: dict) -> None:
    shown = render(report)
    assert shown.count("<svg") == 5 and "<script" not in shown
    assert "ours against theirs-DFlash" in shown


def rounds_of(taus: list[float], dice: random.Random) -> list[PromptRounds]:
    """Prompts of 20 rounds whose tokens per round vary around the given taus."""
    found = []
    for tau in taus:
        accepted = [max(0, round(dice.gauss(tau - 1, 1))) for _ in range(20)]
        found.append(PromptRounds(sum(accepted) + 20, accepted, False))
    return found


def test_a_difference_that_hard_prompts_would_hide_is_found_by_pairing() -> None:
    dice = random.Random(0)
    hardness = [dice.uniform(2, 6) for _ in range(40)]
    better, worse = rounds_of([tau + 0.6 for tau in hardness], dice), rounds_of(hardness, dice)
    found = difference(better, worse)
    assert found.winner == 0 and found.interval is not None and found.interval[0] > 0.3
    assert difference(worse, better).winner == 1


def test_equal_drafters_are_called_different_about_one_time_in_twenty() -> None:
    dice, called = random.Random(1), 0
    for _ in range(100):
        hardness = [dice.uniform(2, 6) for _ in range(30)]
        called += difference(rounds_of(hardness, dice), rounds_of(hardness, dice)).winner is not None
    assert called <= 13


def test_the_verdict_names_the_winner_noise_and_too_few_prompts() -> None:
    dice, turns = random.Random(2), []
    for domain, gain, count in (("code", 1.5, 20), ("math", 0.0, 20), ("chat", 1.0, 2)):
        for number in range(count):
            (a,), (b,) = rounds_of([3 + gain], dice), rounds_of([3.0], dice)
            rounds = {"a": vars(a), "b": vars(b)}
            turns.append({"prompt": f"{domain}{number}", "domain": domain, "source": "s", "rounds": rounds})
    conditions = {"contestants": {"a": {}, "b": {}}}
    lines = say_differences(report_of(conditions, turns))
    assert lines[0].startswith("a against b: a wins, +0.")
    assert any(line.startswith("  code: a wins, +1.") for line in lines)
    assert any(line.startswith("  math: noise, ") for line in lines)
    assert any(line.startswith("  chat: too few prompts to tell (2)") for line in lines)


def test_nobody_or_nothing_to_compare_is_said_in_one_line(places: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="nobody to compare"):
        compare(CompareOptions(data=places.data))
    with pytest.raises(ValueError, match="no drafter nowhere"):
        compare(CompareOptions(contestants=(Path("nowhere"),), data=places.data))
    with pytest.raises(ValueError, match="given twice"):
        compare(CompareOptions(contestants=(places.ours, places.ours), data=places.data))

"""The commands as a person gives them: exit codes, one-line errors, and what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
import yaml

from datagen import ledger, shards
from datagen.cli import COMMANDS, main
from tests.datagen.small_plans import published
from tests.datagen.tiny_target import make_target


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Leave the test process's own signal handlers as they were: a run takes them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Write a manifest of 12 prompts for a target without weights."""
    make_target(tmp_path / "target")
    lines = [shards.encode_row({"prompt": f"Question {number}?"}) for number in range(20)]
    (tmp_path / "prompts.jsonl").write_bytes(b"".join(lines))
    return write_manifest(tmp_path / "mix.yaml", count=12)


def write_manifest(path: Path, count: int, **more: object) -> Path:
    """Write the manifest with another number of prompts, or other fields."""
    source = {"name": "a", "files": "prompts.jsonl", "format": "prompt", "column": "prompt", "domain": "chat"}
    document = {
        "name": "mix",
        "target": {"model": "target"},
        "sampling": {"max_tokens": 32},
        "shard_rows": 5,
        "sources": [source | {"license": "MIT", "count": count}],
    }
    path.write_text(yaml.safe_dump(document | more))
    return path


def datagen(*arguments: object) -> int:
    """Run the command and return its exit code."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return int(str(end.value.code))


def run(manifest: Path, *more: object) -> int:
    """`datagen run` with the echo engine, beside the manifest."""
    out = manifest.parent / "completions_raw"
    return datagen("run", "--manifest", manifest, "--out", out, "--engine", "echo", "--disk-reserve-mib", 0, *more)


def test_every_command_has_help_that_answers_without_heavy_imports() -> None:
    program = (
        "import sys; from datagen.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted(set(sys.modules) & {'torch', 'transformers', 'vllm', 'ray', 'numpy', 'aiohttp', 'pyarrow'}))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert name in said


def test_a_run_answers_every_prompt_and_says_so(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest) == 0
    assert "12 answered, 0 failed, 0 pending" in capsys.readouterr().out
    assert [path.name for path in shards.list_shards(out)] == [shards.shard_name(index) for index in range(3)]
    card = shards.read_card(out)
    assert card is not None
    assert card["engines"][0]["engine"] == "echo"
    assert card["plan"]["num_rows"] == 12
    assert card["target"]["chat_template_sha256"]
    status = orjson.loads((out / "status.json").read_bytes())
    assert (status["state"], status["rows"]["done"]) == ("complete", 12)

    before = published(out)
    assert run(manifest) == 0, "a second time there is nothing to do"
    assert published(out) == before


def test_prometheus_finds_the_counts_in_a_text_file(manifest: Path) -> None:
    metrics = manifest.parent / "datagen.prom"
    assert run(manifest, "--prometheus", metrics) == 0
    lines = metrics.read_text().splitlines()
    assert 'datagen_rows{state="done"} 12' in lines
    assert 'datagen_source_completion_tokens_total{source="a"}' in "".join(lines)


def test_a_grown_manifest_adds_shards_and_leaves_the_others_alone(manifest: Path) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest) == 0
    before = published(out)
    write_manifest(manifest, count=20)
    assert run(manifest) == 0
    after = published(out)
    assert {name: after[name] for name in before} == before
    assert sum(data.count(b"\n") for data in after.values()) == 20
    assert datagen("verify", out) == 0


def test_a_changed_manifest_is_refused_in_one_line(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(manifest) == 0
    write_manifest(manifest, count=12, seed=9)
    capsys.readouterr()
    assert run(manifest) == 2
    said = capsys.readouterr().err
    assert said.startswith("datagen: ") and said.count("\n") == 1 and "seed" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "--manifest", "nowhere.yaml"), "no manifest"),
        (("run", "--manifest", "demo_mix.yaml", "--engine", "http"), "--endpoint"),
        (("run", "--manifest", "demo_mix.yaml", "--rank", "2", "--world", "2"), "--rank 2 is not below"),
        (
            ("plan", "--manifest", "demo_mix.yaml", "--tokens-per-second", "-3"),
            "tokens_per_second: Input should be greater",
        ),
        (("status", "nowhere"), "holds no plan"),
        (("verify", "nowhere"), "holds no plan"),
        (("export", "nowhere", "--to", "openai"), "no folder"),
    ],
)
def test_what_the_user_can_put_right_is_one_line_and_code_2(
    arguments: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert datagen(*arguments) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1


def test_rows_that_failed_for_good_make_the_exit_code_1_until_they_are_answered(manifest: Path) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest, "--echo.refused-frac", 0.3, "--max-bad-frac", 1) == 1
    assert len(ledger.read_failed(out)) > 0
    assert run(manifest) == 1, "nothing left to ask, and still not all answered"
    assert datagen("verify", out) == 0, "failed rows are accounted for"
    assert run(manifest, "--retry-failed") == 0
    assert ledger.read_failed(out) == []


def test_a_run_that_goes_bad_stops_itself(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--echo.refused-frac", 0.9, "--echo.delay-s", 0.5, "--echo.concurrency", 4)
    assert run(manifest, *options, "--max-bad-frac", 0.1, "--bad-after-rows", 2) == 3
    assert "too many bad answers" in capsys.readouterr().out


def test_status_counts_rows_and_lists_the_pending_ones(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest, "--rank", 0, "--world", 2) == 0
    capsys.readouterr()
    assert datagen("status", out) == 0
    said = capsys.readouterr().out
    assert "12 rows planned = 7 done + 0 failed + 5 pending" in said
    assert "3 shards: 2 published, 0 open, 1 untouched" in said
    assert datagen("status", out, "--pending") == 0
    assert len(capsys.readouterr().out.split()) == 5
    assert run(manifest, "--rank", 1, "--world", 2) == 0
    assert datagen("verify", out) == 0


def test_verify_finds_each_kind_of_harm(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest) == 0
    path = out / shards.shard_name(0)
    lines = path.read_bytes().splitlines(keepends=True)
    harms = {
        "1 rows missing": lines[1:],
        "1 doubled": [*lines, lines[0]],
        "not in plan order": lines[::-1],
        "not JSON": [lines[0][:-9], *lines[1:]],
        "seed does not follow": [lines[0].replace(b'"seed":', b'"seed":1'), *lines[1:]],
        ledger.SUMS: [lines[0].replace(b"Question", b"question"), *lines[1:]],
    }
    for expected, harmed in harms.items():
        path.write_bytes(b"".join(harmed))
        capsys.readouterr()
        assert datagen("verify", out) == 1
        assert expected in capsys.readouterr().out


def test_exports_hold_every_row_in_each_form(manifest: Path) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest) == 0
    rows = [row for path in shards.list_shards(out) for row in shards.read_rows(path)]
    exported = {}
    for form in ("openai", "sharegpt", "speculators"):
        assert datagen("export", out, "--to", form) == 0
        exported[form] = list(shards.read_rows(manifest.parent / f"completions_raw_{form}.jsonl"))
        assert [row["id"] for row in exported[form]] == [row["id"] for row in rows]
    first = rows[0]
    assert exported["openai"][0]["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": first["completion"]},
    ]
    assert [turn["from"] for turn in exported["sharegpt"][0]["conversations"]] == ["human", "gpt"]
    speculators = exported["speculators"][0]
    assert speculators["input_ids"] == first["prompt_token_ids"] + first["completion_token_ids"]
    assert sum(speculators["loss_mask"]) == len(first["completion_token_ids"])
    assert speculators["loss_mask"][: len(first["prompt_token_ids"])] == [0] * len(first["prompt_token_ids"])


def test_what_is_not_answered_can_be_asked_with_run_batch(manifest: Path) -> None:
    out = manifest.parent / "completions_raw"
    assert run(manifest, "--rank", 0, "--world", 2) == 0
    assert datagen("export", out, "--to", "run-batch") == 0
    requests = list(shards.read_rows(manifest.parent / "completions_raw_run_batch.jsonl"))
    assert len(requests) == 5
    assert {request["url"] for request in requests} == {"/v1/chat/completions"}
    assert requests[0]["body"]["messages"][0]["content"].startswith("Question")
    assert requests[0]["body"]["max_tokens"] == 32

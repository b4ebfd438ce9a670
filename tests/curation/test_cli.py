"""`curate` as a person uses it: output, files, errors of one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import orjson
import pytest

from curation import labelling
from curation.corpus import LABELS_FILE, open_corpus


def curate(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120"}
    command = [sys.executable, "-m", "curation.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=300)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two domains in two shards, with a card that names a target."""
    found = tmp_path / "completions_raw"
    found.mkdir()
    for index in range(2):
        rows = [
            {
                "id": f"row{index}{number}",
                "source": "one" if number % 4 else "two",
                "domain": "code" if number % 4 else "chat",
                "messages": [{"role": "user", "content": f"Question {index}{number}, what of it?"}],
                "completion": f"Answer {index}{number}.",
                "finish_reason": "stop",
            }
            for number in range(8)
        ]
        (found / f"completions_00000{index}.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    (found / "run.json").write_text(json.dumps({"manifest": {"domains": {"code": 0.2, "chat": 0.8}, "sources": []}}))
    return found


def test_profile_prints_a_table_and_writes_both_files(folder: Path) -> None:
    done = curate("profile", str(folder))
    assert done.returncode == 0, done.stderr
    assert "code is 75.0% of samples" in done.stdout and "target 20%" in done.stdout
    assert json.loads((folder / "profile.json").read_text())["num_rows"] == 16
    assert (folder / "profile.html").read_text().startswith("<!doctype html>")


def test_profile_takes_completions_raw_by_default_and_another_place_for_its_files(folder: Path, tmp_path: Path) -> None:
    done = curate("profile", "--out", "elsewhere", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["profile.html", "profile.json"]
    assert not (folder / "profile.json").exists()


def test_inspect_shows_rows_that_meet_the_conditions(folder: Path) -> None:
    done = curate("inspect", str(folder), "--domain", "chat", "-n", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("[completion]") == 3
    assert "domain code" not in done.stdout
    assert "Answer" in done.stdout and "[user]" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile", "nowhere"], "no folder nowhere; `datagen run --manifest ...` makes one"),
        (["profile", "empty"], "empty holds no completions"),
        (["inspect", "completions_raw", "--domain", "law"], "no row with domain 'law' here; there are: code, chat"),
        (["inspect", "completions_raw", "--flag", "odd"], "no flag 'odd'; there are: empty, truncated"),
        (["profile", "completions_raw", "--manifest", "none.yaml"], "no manifest 'none.yaml' here"),
    ],
)
def test_what_a_person_can_fix_is_one_line_and_exit_code_two(
    folder: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "empty").mkdir()
    done = curate(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert [line for line in done.stderr.splitlines() if line and "reading:" not in line] == [
        done.stderr.splitlines()[-1]
    ]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, curation.cli; print(sorted({'polars', 'duckdb', 'torch', 'transformers', 'numpy', 'pyarrow'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    begun = time.process_time()
    helped = curate("--help")
    assert helped.returncode == 0
    assert all(command in helped.stdout for command in ("profile", "inspect", "label", "build"))
    assert time.process_time() - begun < 5


def test_labels_of_a_person_decide_for_their_source(folder: Path) -> None:
    rows = [
        {
            "source": "tickets",
            "messages": [{"role": "user", "content": f"Matter {number} please"}],
            "completion": f"Noted, {number}.",
        }
        for number in range(12)
    ]
    (folder / "completions_000002.jsonl").write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    shown: list[str] = []
    answers = iter(["s", "nonsense", *["chat"] * 9])
    given = labelling.label(open_corpus(folder), folder / LABELS_FILE, 10, lambda _: next(answers), shown.append)
    assert given == 9
    assert len(shown) == 10 and all("tickets" in text for text in shown)
    assert (folder / LABELS_FILE).read_text().count('"source":"tickets"') == 9
    predicted = open_corpus(folder).facts.filter(source="tickets")["domain_predicted"]
    assert predicted.to_list() == ["chat"] * 12


def test_a_label_that_is_none_is_refused(folder: Path) -> None:
    (folder / LABELS_FILE).write_text("not a label\n")
    done = curate("profile", str(folder))
    assert done.returncode == 2
    assert "line 1: expected a label" in done.stderr

"""Services are really written to, where their packages are installed; metrics.jsonl always is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from training.recipe import LoggingSettings
from training.sinks import METRICS, flatten, open_sinks, read_records

RECORDS: list[dict[str, Any]] = [
    {"kind": "train", "step": 10, "loss": 3.5, "by_domain": {"code": {"tau": 1.5}}, "note": "text is no metric"},
    {"kind": "heldout", "step": 10, "tau": 1.25, "by_domain": {"code": 1.5}},
    {"kind": "train", "step": 20, "loss": 3.0, "by_domain": {"code": {"tau": 1.75}}},
]
LOSSES = [(10, 3.5), (20, 3.0)]


def write(run: Path, *services: str) -> None:
    run.mkdir(exist_ok=True)
    sinks = open_sinks(LoggingSettings.model_validate({"sinks": services, "project": "drafts"}), run, {"seed": 1}, 0)
    for record in RECORDS:
        for sink in sinks:
            sink.write(record)
    for sink in sinks:
        sink.close()


def test_numbers_have_slash_joined_names_and_text_is_left_out() -> None:
    assert flatten(RECORDS[0]) == {"train/loss": 3.5, "train/by_domain/code/tau": 1.5}
    assert flatten(RECORDS[1]) == {"heldout/tau": 1.25, "heldout/by_domain/code": 1.5}


def test_a_resumed_run_drops_the_lines_that_its_checkpoint_does_not_know(tmp_path: Path) -> None:
    write(tmp_path / "run")
    (tmp_path / "run" / METRICS).open("ab").write(b'{"kind": "train", "st')
    open_sinks(LoggingSettings(), tmp_path / "run", {}, 10)
    assert read_records(tmp_path / "run") == RECORDS[:2]


def test_a_service_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(ValueError, match=r"draftmill\[wandb\]"):
        write(tmp_path / "run", "wandb")


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs draftmill[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / "run", "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == LOSSES
    assert [event.value for event in events.Scalars("heldout/by_domain/code")] == [1.5]


def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs draftmill[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write(tmp_path / "run", "wandb")
    (log,) = (tmp_path / "run").glob("wandb/offline-run-*/run-*.wandb")
    content = log.read_bytes()
    assert b"train/loss" in content and b"heldout/tau" in content


def test_trackio_keeps_a_run_in_its_local_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="needs draftmill[trackio]")
    from trackio.sqlite_storage import SQLiteStorage

    write(tmp_path / "run", "trackio")
    logs = SQLiteStorage.get_logs("drafts", "run")
    found = [(log["step"], log["train/loss"]) for log in logs if "train/loss" in log]
    assert found == LOSSES, json.dumps(logs, default=str)

"""Checkpoints: whole or absent, checked, safe to load."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from training import checkpoint


def state(value: float = 1.0, numbers: int = 100) -> dict[str, object]:
    return {"drafter": {"fc.weight": torch.full((numbers,), value)}, "ema": None, "note": "text"}


def test_a_checkpoint_holds_what_was_saved_and_its_step(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 7, state(3.0))
    assert folder == tmp_path / "step_7"
    kept = checkpoint.load(folder)
    assert kept["step"] == 7 and kept["note"] == "text"
    assert torch.equal(kept["drafter"]["fc.weight"], torch.full((100,), 3.0))


def test_it_loads_with_weights_only(tmp_path: Path) -> None:
    folder = checkpoint.save(tmp_path, 1, state())
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["step"] == 1


@pytest.mark.faults
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, state(step))
    spoilt = tmp_path / "step_3" / "checkpoint.pt"
    content = bytearray(spoilt.read_bytes())
    content[len(content) // 2] ^= 1
    spoilt.write_bytes(bytes(content))
    short = tmp_path / "step_2" / "checkpoint.pt"
    short.write_bytes(short.read_bytes()[:-1])
    folder, problems = checkpoint.newest_intact(tmp_path)
    assert folder == tmp_path / "step_1"
    assert "step_3" in problems[0] and "checksum" in problems[0] and "step_2" in problems[1]
    with pytest.raises(ValueError, match="use an earlier step"):
        checkpoint.load(tmp_path / "step_3")


@pytest.mark.faults
def test_a_full_disk_leaves_the_previous_checkpoint_as_it_was(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, state())
    with _no_file_larger_than(20_000), pytest.raises(ValueError, match="step_1 is intact.*make room"):
        checkpoint.save(tmp_path, 2, state(numbers=100_000))
    assert checkpoint.newest_intact(tmp_path) == (tmp_path / "step_1", [])
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, state(1.0))
    checkpoint.save(tmp_path, 1, state(2.0))
    assert checkpoint.load(tmp_path / "step_1")["drafter"]["fc.weight"][0] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]


def test_the_newest_are_kept_and_those_at_multiples(tmp_path: Path) -> None:
    for step in range(10, 80, 10):
        checkpoint.save(tmp_path, step, state())
    (tmp_path / ".step_90.1.tmp").mkdir()
    assert checkpoint.prune(tmp_path, keep_last=2, keep_every=30) == [10, 20, 40, 50]
    assert checkpoint.steps(tmp_path) == [30, 60, 70]
    assert not (tmp_path / ".step_90.1.tmp").exists()


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint in"):
        checkpoint.load(tmp_path)
    with pytest.raises(ValueError, match="train first"):
        checkpoint.load_drafter(tmp_path)


@contextmanager
def _no_file_larger_than(limit: int) -> Iterator[None]:
    """Make writes fail in the operating system, as a full disk does."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

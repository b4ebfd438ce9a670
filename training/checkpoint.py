"""Checkpoints: `step_N/checkpoint.pt`, whole or absent, and safe to load.

A checkpoint is written into a temporary folder, synced, and renamed; `checkpoint.json` beside it holds its size and checksum.
So a kill or a full disk leaves the previous one as it was. Tensors are whole, whatever sharded them, under the names that
z-lab gives them: any number of processes can go on from it. There is no random state to keep, because every draw of a run is
seeded by its place in the run. Loading never runs code (`weights_only=True`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch
import xxhash

from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.durable import sync

FORMAT = 1
"""Raised when what a checkpoint holds changes its meaning."""

STATE, CARD = "checkpoint.pt", "checkpoint.json"

_STEP = re.compile(r"^step_(\d+)$")


def save(run: Path, step: int, state: dict[str, Any]) -> Path:
    """Write `run/step_N` and return it.

    Args:
        run: the run's folder.
        step: optimiser steps done.
        state: tensors, numbers, strings, and lists and dicts of them.

    Raises:
        ValueError: the disk is full, or cannot be written; what was there before is untouched.
    """
    final, temporary = run / f"step_{step}", run / f".step_{step}.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True)
        with (temporary / STATE).open("wb") as file:
            torch.save({"format": FORMAT, "step": step, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        card = {"step": step, "bytes": (temporary / STATE).stat().st_size, "xxh3_128": _checksum(temporary / STATE)}
        with (temporary / CARD).open("w") as text:
            json.dump(card, text)
            text.flush()
            os.fsync(text.fileno())
        _replace(temporary, final)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # torch closes its archive after a failed write and complains of that; the write's own error is the context.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        if not isinstance(cause, OSError):
            raise
        free = shutil.disk_usage(run).free / 2**30 if run.is_dir() else 0.0
        last = steps(run)
        kept = f"step_{last[-1]} is intact" if last else "there is none before it"
        raise ValueError(
            f"cannot write checkpoint {final} ({cause}; {free:.1f} GiB free); {kept}: make room and run again"
        ) from error
    return final


def steps(run: Path) -> list[int]:
    """Return the steps that have a checkpoint, ascending."""
    found = [_STEP.match(path.name) for path in run.iterdir()] if run.is_dir() else []
    return sorted(int(match.group(1)) for match in found if match and (run / match.group(0) / CARD).is_file())


def prune(run: Path, keep_last: int, keep_every: int | None) -> list[int]:
    """Delete all but the newest `keep_last` checkpoints and those at multiples of `keep_every`; return what was deleted.
    Leftovers of interrupted writes go, too."""
    for leftover in run.glob(".step_*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    doomed = [step for step in steps(run)[:-keep_last] if not (keep_every and step % keep_every == 0)]
    for step in doomed:
        shutil.rmtree(run / f"step_{step}")
    return doomed


def newest_intact(run: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint whose checksum holds (None where there is none), and what was wrong with newer ones."""
    problems = []
    for step in reversed(steps(run)):
        folder = run / f"step_{step}"
        if problem := check(folder):
            problems.append(problem)
            continue
        return folder, problems
    return None, problems


def check(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint, None where size and checksum are as they were written."""
    card = json.loads((folder / CARD).read_text())
    state = folder / STATE
    size = state.stat().st_size if state.is_file() else 0
    if size != card["bytes"]:
        return f"{state} has {size} bytes, {card['bytes']} were written"
    if _checksum(state) != card["xxh3_128"]:
        return f"{state} is damaged: its checksum is not the one that was written"
    return None


def load(folder: Path) -> dict[str, Any]:
    """Return the state in a checkpoint's folder, its tensors mapped from the file on the CPU.

    Raises:
        ValueError: there is none, it is damaged, or a later Draftmill wrote it.
    """
    if not (folder / CARD).is_file():
        raise ValueError(f"no checkpoint in {folder}: expected {STATE} and {CARD}, as `train` writes them to step_N")
    if problem := check(folder):
        raise ValueError(f"{problem}; use an earlier step")
    state = torch.load(folder / STATE, map_location="cpu", weights_only=True, mmap=True)
    if state["format"] != FORMAT:
        raise ValueError(f"{folder} has checkpoint format {state['format']}, this version reads {FORMAT}")
    return state


def load_drafter(folder: Path, ema: bool | None = None) -> DFlashDrafter:
    """Return the drafter in a checkpoint's folder, or in a run's (its newest intact checkpoint), float32 on the CPU.

    Args:
        folder: `runs/NAME/step_N` or `runs/NAME`.
        ema: take the averaged weights; None: where there are any.

    Raises:
        ValueError: there is no intact checkpoint, or no average in it.
    """
    if not (folder / CARD).is_file():
        newest, problems = newest_intact(folder)
        if newest is None:
            raise ValueError(
                f"no checkpoint in {folder}" + (f": {'; '.join(problems)}" if problems else "; train first")
            )
        folder = newest
    state = load(folder)
    if ema and state["ema"] is None:
        raise ValueError(f"{folder} holds no averaged weights; train with optimizer.ema_decay")
    drafter = DFlashDrafter(DrafterConfig.from_json(json.loads(state["drafter_config"])))
    drafter.load_state_dict(state["drafter"] if ema is False or state["ema"] is None else state["ema"])
    return drafter


def _replace(temporary: Path, final: Path) -> None:
    """Rename a complete folder into place; an older one of that name (a damaged one, done again) goes after that."""
    aside = final.with_name(f".{final.name}.replaced.tmp")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _checksum(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            digest.update(chunk)
    return digest.hexdigest()

"""Tau on held-out rows while training: the pointer walk of `pointer.py`, shared out over the drafter ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from training.batches import Batch
from training.distributed import Ranks, gathered
from training.job import Prepared
from training.pointer import Walk, pointer_walk, tau, tau_by_domain
from training.state import State
from training.step import Objective


def measure_heldout(state: State, objective: Objective, batches: Iterator[Batch], ranks: Ranks) -> dict[str, Any]:
    """Return tau over all walked rows and by domain. `batches` are this rank's, on its device."""
    state.drafter.eval()
    with torch.no_grad(), gathered(state.drafter), objective.arithmetic():
        walks = pointer_walk(objective.source, state.drafter, batches)
    state.drafter.train()
    everyone: list[Walk] = [walk for part in ranks.gather(walks) for walk in part]
    return {
        "kind": "heldout",
        "step": state.step,
        "tau": tau(everyone),
        "rows": len(everyone),
        "rounds": sum(walk.rounds for walk in everyone),
        "by_domain": tau_by_domain(everyone),
    }


def heldout_parts(prepared: Prepared) -> list[np.ndarray]:
    """Return the held-out rows that are walked, by micro-batch: the same ones every time, none where nothing is held out."""
    if prepared.heldout is None:
        return []
    recipe = prepared.job.recipe
    rows = spread(len(prepared.heldout), recipe.heldout.rows)
    return pack_in_order(prepared.heldout.lengths, rows, recipe.batches.tokens)


def spread(num_rows: int, most: int) -> np.ndarray:
    """Return at most `most` row numbers, evenly spread over `num_rows`."""
    wanted = min(num_rows, most)
    return np.arange(wanted) * num_rows // wanted


def pack_in_order(lengths: np.ndarray, rows: np.ndarray, tokens: int) -> list[np.ndarray]:
    """Cut `rows`, in order, into parts of at most `tokens` tokens (a longer row stands alone)."""
    parts: list[list[int]] = [[]]
    filled = 0
    for row in rows.tolist():
        if parts[-1] and filled + lengths[row] > tokens:
            parts.append([])
            filled = 0
        parts[-1].append(row)
        filled += int(lengths[row])
    return [np.array(part, dtype=np.int64) for part in parts]

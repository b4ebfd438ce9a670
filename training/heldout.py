"""Tau on held-out rows while training: the pointer walk of `pointer.py`, shared out over the drafter ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from training.batches import Batch, RowStore
from training.distributed import Ranks
from training.job import Prepared
from training.pointer import Walk, pointer_walk, tau, tau_by_domain
from training.state import State
from training.step import Objective


class Heldout:
    """The held-out rows that are walked, the same ones every time."""

    def __init__(self, prepared: Prepared, ranks: Ranks, objective: Objective):
        self._store, self._ranks, self._objective = prepared.heldout, ranks, objective
        self._parts: list[np.ndarray] = []
        if self._store is not None:
            recipe = prepared.job.recipe
            rows = spread(len(self._store), recipe.heldout.rows)
            self._parts = pack_in_order(self._store.lengths, rows, recipe.batches.tokens)

    def measure(self, state: State) -> dict[str, Any] | None:
        """Return tau over all walked rows and by domain; None where nothing is held out."""
        if self._store is None:
            return None
        state.drafter.eval()
        with torch.no_grad(), self._objective.arithmetic():
            walks = pointer_walk(self._objective.source, state.drafter, self._batches(self._store))
        state.drafter.train()
        everyone: list[Walk] = [walk for part in self._ranks.gather(walks) for walk in part]
        return {
            "kind": "heldout",
            "step": state.step,
            "tau": tau(everyone),
            "rows": len(everyone),
            "rounds": sum(walk.rounds for walk in everyone),
            "by_domain": tau_by_domain(everyone),
        }

    def _batches(self, store: RowStore) -> Iterator[Batch]:
        for part in self._parts[self._ranks.drafter_number :: self._ranks.num_drafters]:
            yield store.pack(part, bucket=0).to(self._ranks.device)


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

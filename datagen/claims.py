"""Which source a prompt belongs to, where several hold it."""

from __future__ import annotations

import numpy as np


class Claims:
    """Owners of prompts by rank: the source that planned one before, else the first that holds it.

    A prompt is its source's whether drawn there or not, so what a source gives never depends on how many another was
    asked for. Memory is ten bytes per distinct prompt.
    """

    def __init__(self, across_sources: bool, kept: dict[str, np.ndarray]) -> None:
        """Begin with what an earlier plan holds.

        Args:
            across_sources: whether a prompt may be asked by one source only.
            kept: ranks planned before, ascending uint64, by source.
        """
        self._across_sources = across_sources
        self._names: list[str] = []
        self._ranks = np.empty(0, dtype=np.uint64)
        self._owners = np.empty(0, dtype=np.uint16)
        for name, ranks in kept.items():
            self.add(name, ranks)

    def add(self, name: str, ranks: np.ndarray) -> None:
        """Give prompts that are nobody's yet to a source."""
        if not self._across_sources:
            return
        self._names.append(name)
        free = ranks[~np.isin(ranks, self._ranks)]
        owners = np.full(len(free), len(self._names) - 1, dtype=np.uint16)
        together = np.concatenate([self._ranks, free])
        order = np.argsort(together, kind="stable")
        self._ranks, self._owners = together[order], np.concatenate([self._owners, owners])[order]

    def owners(self, ranks: np.ndarray) -> list[str | None]:
        """Return the owner of each prompt, None where it has none."""
        at, found = np.searchsorted(self._ranks, ranks), among(ranks, self._ranks)
        return [self._names[self._owners[i]] if hit else None for i, hit in zip(at, found, strict=True)]


def among(ranks: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Return which of a few ranks are among many, in time that grows with the few."""
    if not len(ascending):
        return np.zeros(len(ranks), dtype=bool)
    return ascending[np.minimum(np.searchsorted(ascending, ranks), len(ascending) - 1)] == ranks

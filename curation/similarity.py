"""Exact Jaccard similarity of the shingle sets of two texts, for many pairs at once.

Sets are of 32-bit shingle hashes. Two different shingles of a pair share a hash once in some ten thousand pairs of
thousand-word texts, which changes the similarity by a thousandth: exact for the purpose of a threshold.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from curation.funnel import Texts
from curation.shingles import shingle_hashes

CACHE_BYTES = 128 * 1024 * 1024
"""Shingle sets that are kept for later comparisons, least recently used first out."""

_CHUNK_TEXTS = 256
"""Texts that are read and shingled together."""

_CHUNK_SHINGLES = 1 << 20
"""Shingles that are compared together."""


class ShingleSets:
    """Shingle sets of rows, read from their text when they are first compared."""

    def __init__(self, texts: Texts, *, words: int, mask_digits: bool) -> None:
        self._texts, self._words, self._mask_digits = texts, words, mask_digits
        self._sets: OrderedDict[int, np.ndarray] = OrderedDict()
        self._num_bytes = 0

    def jaccard(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the similarity of each pair of positions, float64; 0 where neither has a shingle."""
        similarity = np.empty(len(one))
        for begin in range(0, len(one), _CHUNK_TEXTS):
            part = slice(begin, begin + _CHUNK_TEXTS)
            sets = self._load(np.unique(np.concatenate([one[part], other[part]])))
            similarity[part] = _jaccard(
                [sets[row] for row in one[part].tolist()], [sets[row] for row in other[part].tolist()]
            )
        return similarity

    def _load(self, rows: np.ndarray) -> dict[int, np.ndarray]:
        """Return the sets of these positions, reading those that are not at hand."""
        missing = np.array([row for row in rows.tolist() if row not in self._sets], dtype=np.int64)
        if len(missing):
            hashes, starts = shingle_hashes(
                list(self._texts(missing)), words=self._words, mask_digits=self._mask_digits
            )
            for row, begin, end in zip(missing.tolist(), starts[:-1].tolist(), starts[1:].tolist(), strict=True):
                self._sets[row] = np.unique(hashes[begin:end])
                self._num_bytes += self._sets[row].nbytes
        loaded = {row: self._sets[row] for row in rows.tolist()}
        for row in loaded:
            self._sets.move_to_end(row)
        while self._num_bytes > CACHE_BYTES:
            self._num_bytes -= self._sets.popitem(last=False)[1].nbytes
        return loaded


def _jaccard(ones: list[np.ndarray], others: list[np.ndarray]) -> np.ndarray:
    """Return the similarity of each pair of sorted sets."""
    size = np.array([len(one) + len(other) for one, other in zip(ones, others, strict=True)])
    cuts = np.flatnonzero(np.diff(np.cumsum(size) // _CHUNK_SHINGLES)) + 1
    bounds = [0, *cuts.tolist(), len(ones)]
    shared = [_num_shared(ones[begin:end], others[begin:end]) for begin, end in zip(bounds, bounds[1:], strict=False)]
    common = np.concatenate(shared)
    return np.divide(common, size - common, out=np.zeros(len(ones)), where=size > common)


def _num_shared(ones: list[np.ndarray], others: list[np.ndarray]) -> np.ndarray:
    """Return how many values the two sets of each pair share: the pair's number goes on top of each value."""
    left, right = _tagged(ones), _tagged(others)
    if not len(left) or not len(right):
        return np.zeros(len(ones), dtype=np.int64)
    at = np.searchsorted(left, right)
    found = left[np.minimum(at, len(left) - 1)] == right
    return np.bincount((right[found] >> np.uint64(32)).astype(np.int64), minlength=len(ones))


def _tagged(sets: list[np.ndarray]) -> np.ndarray:
    pair = np.repeat(np.arange(len(sets), dtype=np.uint64), [len(values) for values in sets])
    return pair << np.uint64(32) | np.concatenate(sets).astype(np.uint64)

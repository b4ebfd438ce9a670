"""Locality-sensitive hashing over MinHash signatures: which rows are worth comparing.

A signature is cut into bands; two rows are candidates when a band agrees in full. With b bands of r rows that happens
with probability 1 - (1 - s^r)^b at similarity s (Leskovec, Rajaraman, Ullman, Mining of Massive Datasets, section
3.4.2), the S-curve. Candidates are verified afterwards, so the curve is chosen for recall: missing a pair is final, a
superfluous candidate costs a comparison of signatures.

Buckets are flat arrays sorted by (band, key, row) and lose rows as these are dropped, so that a cluster of a thousand
near duplicates costs a thousand comparisons with the one that stays, not half a million among themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from curation.shingles import EMPTY_SIGNATURE

MAX_PAIRS = 1 << 22
"""Candidate pairs looked at together: bounds memory to about 200 MB."""

BLOCK_ROWS = 1024
"""Most rows looked at together. Rows of one block are paired with each other before any is decided."""

_CHUNK_ROWS = 1 << 14
"""Rows whose band keys are computed together."""

_CHUNK_PAIRS = 1 << 13
"""Pairs whose signatures are compared together: about 8 MB."""


def detection_probability(similarity: float, bands: int, rows: int) -> float:
    """Return the probability that a pair of this Jaccard similarity shares at least one band."""
    return 1 - (1 - similarity**rows) ** bands


class Signed:
    """Signatures of some rows of a table, without a copy of it."""

    def __init__(self, table: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Choose rows of a table, uint32 [table_rows, num_perm]; None: all, in order."""
        self._table, self._rows = table, rows
        self.num_perm = table.shape[1]

    def __len__(self) -> int:
        return len(self._table) if self._rows is None else len(self._rows)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        """Return the signatures of the chosen rows by their number among these, uint32 [num_rows, num_perm]."""
        return self._table[which] if self._rows is None else self._table[self._rows[which]]


def estimate(signed: Signed, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the estimated Jaccard similarity of each pair, float32: the fraction of equal signature values.

    Args:
        one, other: row numbers, int [num_pairs].
    """
    equal = [
        (signed[one[at : at + _CHUNK_PAIRS]] == signed[other[at : at + _CHUNK_PAIRS]]).mean(axis=1, dtype=np.float32)
        for at in range(0, len(one), _CHUNK_PAIRS)
    ]
    return np.concatenate(equal) if equal else np.empty(0, np.float32)


class Buckets:
    """Rows that share a band with another row, by band."""

    def __init__(self, signed: Signed, bands: int, rows: int) -> None:
        """Sort rows into buckets; rows without any text (all permutations at their maximum) go into none.

        Signatures have bands * rows permutations or more.
        """
        keys, has_text = _band_keys(signed, bands, rows)
        self._num_rows = len(signed)
        self._bands = [_Band(keys[band], has_text) for band in range(bands)]
        self._num_superfluous = 0

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (first, end) of consecutive rows that `pairs` can take together."""
        first = 0
        while first < self._num_rows:
            end = min(first + BLOCK_ROWS, self._num_rows)
            work = np.cumsum(sum(band.num_earlier(first, end) for band in self._bands))
            end = first + max(1, int(np.searchsorted(work, MAX_PAIRS, side="right")))
            yield first, min(end, first + len(work))
            first = min(end, first + len(work))

    def pairs(self, first: int, end: int, stays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return candidate pairs (late, early), each once, sorted; first <= late < end and early < late.

        Args:
            stays: bool [num_rows], False for rows that no pair should name as `early`. Once more pairs were made with
                such rows than there are rows in buckets, they are taken out of the buckets for good.
        """
        found = np.concatenate([band.pairs(first, end) for band in self._bands])
        wanted = stays[found & np.uint64(0xFFFFFFFF)]
        self._num_superfluous += len(found) - int(np.count_nonzero(wanted))
        if self._num_superfluous > sum(band.num_members for band in self._bands):
            for band in self._bands:
                band.forget(~stays)
            self._num_superfluous = 0
        both = np.unique(found[wanted])
        return (both >> np.uint64(32)).astype(np.int64), (both & np.uint64(0xFFFFFFFF)).astype(np.int64)


class _Band:
    """One band's buckets: members sorted by (bucket, row)."""

    def __init__(self, keys: np.ndarray, has_text: np.ndarray) -> None:
        order = np.argsort(keys, kind="stable").astype(np.int32)
        order = order[has_text[order]]
        self._set(order, keys[order], len(keys))

    def _set(self, members: np.ndarray, keys: np.ndarray, num_rows: int) -> None:
        """Keep members of buckets of two and more."""
        same_as_next = keys[1:] == keys[:-1]
        shared = np.zeros(len(keys), dtype=bool)
        shared[1:] |= same_as_next
        shared[:-1] |= same_as_next
        self._members, self._keys = members[shared], keys[shared]
        places = np.arange(len(self._members), dtype=np.int32)
        opens = np.ones(len(places), dtype=bool)
        opens[1:] = self._keys[1:] != self._keys[:-1]
        self._opens_at = np.maximum.accumulate(np.where(opens, places, 0))
        self._place = np.full(num_rows, -1, dtype=np.int32)
        self._place[self._members] = places

    @property
    def num_members(self) -> int:
        """Rows that share a bucket with another."""
        return len(self._members)

    def num_earlier(self, first: int, end: int) -> np.ndarray:
        """Return for each row first..end how many earlier rows share its bucket."""
        place = self._place[first:end]
        there = place >= 0
        earlier = np.zeros(len(place), dtype=np.int64)
        earlier[there] = place[there] - self._opens_at[place[there]]
        return earlier

    def pairs(self, first: int, end: int) -> np.ndarray:
        """Return late << 32 | early for each pair of rows that share a bucket, uint64."""
        earlier = self.num_earlier(first, end)
        late = np.flatnonzero(earlier)
        counts = earlier[late]
        opens_at = self._opens_at[self._place[first + late]]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        early = self._members[np.repeat(opens_at, counts) + offsets]
        return np.repeat(first + late, counts).astype(np.uint64) << np.uint64(32) | early.astype(np.uint64)

    def forget(self, dropped: np.ndarray) -> None:
        stays = ~dropped[self._members]
        self._set(self._members[stays], self._keys[stays], len(dropped))


def _band_keys(signed: Signed, bands: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a 32-bit key per band and row, uint32 [bands, num_rows]: FNV-1a over the band's values (Fowler et al.); and
    whether a row has any text, bool [num_rows].

    Unequal bands may share a key, about once in 2^32 pairs; such a pair is a superfluous candidate.
    """
    keys = np.empty((bands, len(signed)), dtype=np.uint32)
    has_text = np.empty(len(signed), dtype=bool)
    for at in range(0, len(signed), _CHUNK_ROWS):
        signatures = signed[slice(at, at + _CHUNK_ROWS)]
        has_text[at : at + _CHUNK_ROWS] = (signatures != EMPTY_SIGNATURE).any(axis=1)
        chunk = np.ascontiguousarray(signatures[:, : bands * rows].T).reshape(bands, rows, -1)
        key = np.full((bands, chunk.shape[2]), 2166136261, dtype=np.uint32)
        for row in range(rows):
            key = (key ^ chunk[:, row]) * np.uint32(16777619)
            key ^= key >> np.uint32(15)
        keys[:, at : at + _CHUNK_ROWS] = key
    return keys, has_text

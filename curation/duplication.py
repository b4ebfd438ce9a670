"""How much of a corpus repeats: exact duplicates by hash, near duplicates estimated from signatures.

This measures, for the profile; removal, with exact verification and a named keeper for every row, is `dedupe`. Rows that share a
band of their signature with an earlier row are compared with it, and count as near duplicates where their signatures agree
in at least `threshold` of the permutations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from curation.shingles import EMPTY_SIGNATURE

BAND_ROWS = 5
"""Rows per band. With 25 bands a pair of similarity 0.8 is found with probability 1 - (1 - 0.8^5)^25 = 0.9999."""

_CHUNK_ROWS = 16_384
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Duplication:
    """Rows that repeat an earlier one."""

    exact_prompt_rows: int
    """Same normalised prompt as an earlier row: rollouts included."""
    exact_rows: int
    """Same normalised prompt and completion as an earlier row."""
    near_prompt_rows: int
    """Signature agrees with an earlier row's in at least `threshold`; exact repeats included."""
    threshold: float
    by_source: dict[str, int]
    """Near-duplicate rows by source."""


def duplication(facts: pl.DataFrame, signatures: np.ndarray, threshold: float = 0.8) -> Duplication:
    """Return how many rows repeat an earlier one."""
    near = near_duplicates(signatures, threshold)
    sources = facts["source"].filter(pl.Series(near)).value_counts(sort=True)
    return Duplication(
        exact_prompt_rows=facts.height - facts["prompt_hash"].n_unique(),
        exact_rows=facts.height - facts.select("prompt_hash", "completion_hash").n_unique(),
        near_prompt_rows=int(near.sum()),
        threshold=threshold,
        by_source=dict(sources.iter_rows()),
    )


def near_duplicates(signatures: np.ndarray, threshold: float) -> np.ndarray:
    """Return which rows have an earlier near duplicate, bool [num_rows]."""
    near = np.zeros(len(signatures), dtype=bool)
    worded = np.flatnonzero(signatures[:, 0] != EMPTY_SIGNATURE) if len(signatures) else np.empty(0, np.int64)
    for keys in _band_keys(signatures, worded):
        order = np.argsort(keys, kind="stable")  # equal keys stay in row order, the earliest first
        begins = np.flatnonzero(np.concatenate([[True], keys[order[1:]] != keys[order[:-1]]]))
        run_lengths = np.diff(np.append(begins, len(order)))
        first = worded[order[np.repeat(begins, run_lengths)]]
        for earlier, later in ((first, worded[order]), (worded[order[:-1]], worded[order[1:]])):
            # Bands decide who is compared at all; those already known to repeat need no second look.
            same = (earlier < later) & ~near[later]
            if len(earlier) < len(order):
                same &= keys[order[1:]] == keys[order[:-1]]
            near[_that_agree(signatures, earlier[same], later[same], threshold)] = True
    return near


def _band_keys(signatures: np.ndarray, worded: np.ndarray) -> np.ndarray:
    """Return one 32-bit key per band and row, uint32 [num_bands, num_worded_rows]; a collision costs one comparison."""
    num_bands = max(1, signatures.shape[1] // BAND_ROWS)
    keys = np.empty((num_bands, len(worded)), dtype=np.uint32)
    for begin in range(0, len(worded), _CHUNK_ROWS):
        part = signatures[worded[begin : begin + _CHUNK_ROWS]].astype(np.uint64)
        for band in range(num_bands):
            key = np.zeros(len(part), dtype=np.uint64)
            for column in part[:, band * BAND_ROWS : (band + 1) * BAND_ROWS].T:
                key = (key ^ column) * _ODD
                key ^= key >> np.uint64(32)
            keys[band, begin : begin + len(part)] = key.astype(np.uint32)
    return keys


def _that_agree(signatures: np.ndarray, earlier: np.ndarray, later: np.ndarray, threshold: float) -> np.ndarray:
    """Return those of `later` whose signature agrees with that of their `earlier` row."""
    agreeing = [np.empty(0, np.int64)]
    for begin in range(0, len(later), _CHUNK_ROWS):
        rows = later[begin : begin + _CHUNK_ROWS]
        agreement = (signatures[earlier[begin : begin + _CHUNK_ROWS]] == signatures[rows]).mean(axis=1)
        agreeing.append(rows[agreement >= threshold])
    return np.concatenate(agreeing)

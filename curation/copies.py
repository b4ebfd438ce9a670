"""Verdicts on rows, and the ones that need no similarity: exact copies and surplus rollouts, by hash.

A hash of a prompt ignores case, punctuation and spacing. Rows with the same prompt and the same completion are copies;
with another completion they are rollouts, of which only so many are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
import xxhash

from curation.funnel import Drop

Scope = Literal["prompt", "completion", "both"]
"""The text that rows are compared by."""

EMPTY_HASH = xxhash.xxh3_64_intdigest(b"")
"""Normalised hash of a text without words."""

STAYS, _COPY, _SURPLUS, NEAR = range(4)
_REASONS = {_COPY: "exact_duplicate", _SURPLUS: "completions_per_prompt", NEAR: "near_duplicate"}


@dataclass(slots=True)
class Verdict:
    """What becomes of each row, as columns."""

    reason: np.ndarray
    """int8 [num_rows], one of the constants above."""
    of: np.ndarray
    """int64 [num_rows]: the row that it repeats."""
    similarity: np.ndarray
    """float64 [num_rows]."""

    def near(self, rows: np.ndarray, of: np.ndarray, similarity: np.ndarray) -> None:
        """Mark rows as near duplicates of the rows in `of`, and as staying where that is -1."""
        self.reason[rows] = np.where(of >= 0, NEAR, STAYS)
        self.of[rows], self.similarity[rows] = of, similarity

    def drops(self, positions: np.ndarray, ids: pl.Series) -> list[Drop]:
        """Return the rows that go."""
        rows = np.flatnonzero(self.reason)
        kept_ids = ids[self.of[rows]].to_list()
        return [
            Drop(position, _REASONS[reason], kept_id, None if reason == _SURPLUS else similarity)
            for position, reason, kept_id, similarity in zip(
                positions[rows].tolist(),
                self.reason[rows].tolist(),
                kept_ids,
                self.similarity[rows].round(6).tolist(),
                strict=True,
            )
        ]


def judge_copies(
    rows: pl.DataFrame, scope: Scope, max_completions_per_prompt: int | None
) -> tuple[np.ndarray, Verdict]:
    """Return the first row with each row's text (of the scope), and a verdict on exact copies and surplus rollouts."""
    prompt, both, completion = ["prompt_hash"], ["prompt_hash", "completion_hash"], ["completion_hash"]
    text, copy = {"prompt": (prompt, both), "completion": (completion, completion), "both": (both, both)}[scope]
    leader_of, copy_of = first_of(rows.select(text)), first_of(rows.select(copy))
    is_copy = copy_of != np.arange(len(rows))
    verdict = Verdict(np.where(is_copy, _COPY, STAYS).astype(np.int8), copy_of, np.ones(len(rows)))
    if scope == "prompt" and max_completions_per_prompt is not None:
        rank = pl.DataFrame({"leader": leader_of, "counts": ~is_copy}).select(
            pl.col("counts").cast(pl.Int64).cum_sum().over("leader")
        )
        surplus = (rank.to_series().to_numpy() > max_completions_per_prompt)[copy_of]
        verdict.reason[surplus], verdict.of[surplus] = _SURPLUS, leader_of[surplus]
    return leader_of, verdict


def first_of(hashes: pl.DataFrame) -> np.ndarray:
    """Return for each row the first row with the same hashes; a row without words is like no other."""
    without_words = pl.any_horizontal(pl.all() == EMPTY_HASH)
    first = hashes.with_row_index("row").select(
        pl.when(without_words).then(pl.col("row")).otherwise(pl.col("row").min().over(hashes.columns))
    )
    return first.to_series().cast(pl.Int64).to_numpy(writable=True)

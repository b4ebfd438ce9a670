"""The funnel: every row that came in is counted once, as kept or as dropped with a reason.

Steps (filters, dedupe, decontamination, balance) are pure: rows in, an `Outcome` out. They neither print nor write, and
do not know each other; `build` strings them together and keeps the funnel. Rows are named by their position in the facts
table (0-based, shard order then line order), so outcomes are small whatever the size of the text. A step that needs text
asks for it by position, so memory is bounded by what the step looks at and not by what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

Texts = Callable[[np.ndarray], Iterator[str]]
"""Text of rows: takes int64 positions, yields one string for each in the order asked."""


class StepRefused(ValueError):
    """A step would do what nobody wants (empty a source, keep next to nothing) and stops; says what to change."""


@dataclass(frozen=True, slots=True)
class Drop:
    """One row that a step dropped."""

    row: int
    """Position in the facts table."""
    reason: str
    """Counted reason, a short snake_case noun phrase, e.g. `near_duplicate`, `finish_reason_length`."""
    collided_with: str | None = None
    """Id of the kept row or the evaluation item it collided with."""
    score: float | None = None
    """Similarity or coverage that decided, where there is one."""
    detail: str | None = None
    """What a person needs to see, e.g. the contaminated span."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step decided."""

    kept: np.ndarray
    """int64 positions of kept rows, ascending (repeats allowed where a step upsamples)."""
    dropped: list[Drop]
    notes: list[str] = field(default_factory=list)
    """Sentences for the report, e.g. which target share cannot be reached and by how many tokens."""


@dataclass(slots=True)
class Funnel:
    """Counts of a build, step by step."""

    num_rows: int
    """Rows that came in."""
    steps: list[tuple[str, int, dict[str, int]]] = field(default_factory=list)
    """(step, distinct rows kept, rows dropped by reason, most frequent first), in order."""

    def add(self, step: str, rows_in: np.ndarray, outcome: Outcome) -> None:
        """Count a step. Its distinct kept rows and its drops must together be the rows that went in, each once."""
        kept, dropped = np.unique(outcome.kept), np.array([drop.row for drop in outcome.dropped], dtype=np.int64)
        together = np.sort(np.concatenate([kept, dropped]))
        assert np.array_equal(together, np.sort(rows_in)), (
            f"{step}: kept and dropped rows are not the rows that went in"
        )
        reasons = Counter(drop.reason for drop in outcome.dropped)
        self.steps.append((step, len(kept), dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))))

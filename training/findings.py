"""What a check of a run finds, and what checks have in common.

A check takes the records of metrics.jsonl and the run's card (run.json), is pure, and returns findings that name a cause and a
knob, or nothing. Thresholds are set so that a healthy run says nothing: a finding that is often wrong teaches people not to
read them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from training.loss_bands import Band

Records = list[dict[str, Any]]
Card = dict[str, Any]

FEWEST_RECORDS = 20
"""Records of training below which most checks say nothing."""


@dataclass(frozen=True)
class Finding:
    """Something that is likely wrong."""

    symptom: str
    """Short name, the same for the same kind of fault."""
    severity: Literal["fault", "warning"]
    evidence: str
    """What was seen, with its figures."""
    cause: str
    """What most likely makes it."""
    knob: str
    """What to change, or look at next."""
    bands: tuple[Band, ...] = field(default=())


def training_records(records: Records) -> Records:
    """Return the records of training steps."""
    return [record for record in records if record["kind"] == "train"]


def batches_per_record(card: Card) -> float:
    """Return how many micro-batches a record of training sums up."""
    recipe = card.get("recipe") or {}
    return float((recipe.get("batches") or {}).get("per_step", 1) * (recipe.get("logging") or {}).get("every", 1))

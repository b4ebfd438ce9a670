"""What can be wrong with a run, read off its records: every check, in the order in which a person would ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training.agreement_symptoms import decoding_disagrees, train_and_heldout_disagree
from training.findings import Card, Finding, Records
from training.learning_symptoms import (
    not_learning,
    odd_learning_rate,
    rough_gradients,
    slots_that_do_not_learn,
    steps_left_out,
)
from training.mixing_symptoms import homogeneous_batches, loss_in_bands, loss_ladder
from training.supply_symptoms import anchors_too_few, anchors_unused, starved_of_data

CHECKS: tuple[Callable[[Records, Card], list[Finding]], ...] = (
    not_learning,
    loss_in_bands,
    loss_ladder,
    homogeneous_batches,
    slots_that_do_not_learn,
    rough_gradients,
    odd_learning_rate,
    train_and_heldout_disagree,
    anchors_too_few,
    anchors_unused,
    steps_left_out,
    starved_of_data,
)


def find_symptoms(records: Records, card: Card, evaluation: dict[str, Any] | None = None) -> list[Finding]:
    """Return everything that looks wrong, faults first. `evaluation` is what `drafter evaluate` wrote, where it did."""
    findings = [finding for check in CHECKS for finding in check(records, card)]
    if evaluation is not None:
        findings += decoding_disagrees(records, evaluation)
    return sorted(findings, key=lambda finding: finding.severity != "fault")

"""Whether figures agree that should: training blocks, held-out rows by pointer walk, and decoding."""

from __future__ import annotations

from typing import Any

import numpy as np

from training.findings import FEWEST_RECORDS, Card, Finding, Records, training_records

GENERALISATION_GAP = 1.35
"""Training tau over held-out tau above which the run has learned its rows by heart, or decodes something else."""

DECODING_GAP = 1.15
"""Held-out tau by pointer walk over decoded tau (or the reverse) above which training and decoding disagree."""


def train_and_heldout_disagree(records: Records, card: Card) -> list[Finding]:
    """Held-out tau that falls, or stays far below what training blocks say."""
    training, heldout = training_records(records), [r for r in records if r["kind"] == "heldout"]
    if len(heldout) < 3 or len(training) < FEWEST_RECORDS:
        return []
    taus = [record["tau"] for record in heldout]
    best = int(np.argmax(taus))
    last = taus[-1]
    near = [r["tau"] for r in training if "tau" in r][-max(3, len(training) // 10) :]
    shown = float(np.median(near))
    findings = []
    if best <= len(taus) - 4 and taus[best] - last > 0.05 * (taus[best] - 1) + 0.02:
        findings.append(
            Finding(
                "over-trained",
                "warning",
                f"held-out tau was {taus[best]:.2f} at step {heldout[best]['step']} and is {last:.2f} now",
                "the run learns its rows by heart: too few prompts for so many epochs",
                f"take step_{heldout[best]['step']} or the nearest checkpoint; grow the set (`curate plan`) rather than the epochs",
            )
        )
    if (shown - 1) > GENERALISATION_GAP * (last - 1) + 0.3:
        findings.append(
            Finding(
                "training flatters",
                "warning",
                f"tau is {shown:.2f} on training blocks and {last:.2f} on held-out text",
                "rows learned by heart, or near duplicates on both sides of the split, or features that leak the answer",
                "grow the set; check `curate build`'s held-out clusters and the drafter's target_layer_ids",
            )
        )
    return findings


def decoding_disagrees(records: Records, evaluation: dict[str, Any]) -> list[Finding]:
    """Decoded tau against the pointer walk on held-out rows of the same set."""
    heldout = [r for r in records if r["kind"] == "heldout"]
    conditions, found = evaluation.get("conditions") or {}, (evaluation.get("all") or {}).get("tau")
    comparable = conditions.get("prompts") == "held-out rows of the set" and conditions.get("temperature") == 0
    if not heldout or found is None or not comparable:
        return []
    walked = heldout[-1]["tau"]
    ratio = max(walked, found) / min(walked, found)
    if ratio < DECODING_GAP:
        return []
    low, high = (evaluation["all"].get("tau_interval") or (found, found))[:2]
    if low <= walked <= high:
        return []
    return [
        Finding(
            "decoding disagrees",
            "fault",
            f"held-out tau by pointer walk is {walked:.2f}, decoding gives {found:.2f}",
            "training and decoding see different things: positions, features, mask token or template",
            "check that the evaluation used the run's own target and last step; then run the drafter's parity tests",
        )
    ]

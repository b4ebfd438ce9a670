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
    taus = np.array([record["tau"] for record in heldout])
    smooth = _medians_of_three(taus)
    best, last = int(np.argmax(smooth)), float(smooth[-1])
    # What training said when held-out text was last measured; and the better of the two latest, since tau still rises.
    until = [r["tau"] for r in training if "tau" in r and r["step"] <= heldout[-1]["step"]]
    shown, measured = float(np.median(until[-max(3, len(training) // 10) :] or [1.0])), max(last, float(taus[-1]))
    findings = []
    # A plateau wobbles: its highest point lies above its end without meaning anything.
    fall = smooth[best] - last
    if best <= len(taus) - 4 and fall > max(0.05 * (smooth[best] - 1) + 0.02, 3 * _wobble(taus)):
        findings.append(
            Finding(
                "over-trained",
                "warning",
                f"held-out tau was {smooth[best]:.2f} around step {heldout[best]['step']} and is {last:.2f} now",
                "the run learns its rows by heart: too few prompts for so many epochs",
                f"take step_{heldout[best]['step']} or the nearest checkpoint; grow the set (`curate plan`) rather than the epochs",
            )
        )
    if (shown - 1) > GENERALISATION_GAP * (measured - 1) + 0.3:
        findings.append(
            Finding(
                "training flatters",
                "warning",
                f"tau is {shown:.2f} on training blocks and {measured:.2f} on held-out text",
                "rows learned by heart, or near duplicates on both sides of the split, or features that leak the answer",
                "grow the set; check `curate build`'s held-out clusters and the drafter's target_layer_ids",
            )
        )
    return findings


def _medians_of_three(values: np.ndarray) -> np.ndarray:
    """Return every value's median with its neighbours; the ends have the median of the three nearest them."""
    return np.pad(np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1), 1, mode="edge")


def _wobble(values: np.ndarray) -> float:
    """Return the standard deviation of single values around a slow curve, from their second differences."""
    return float(1.4826 * np.median(np.abs(np.diff(values, 2))) / np.sqrt(6))


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

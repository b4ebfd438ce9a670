"""Whether the weights learn: the loss, the slots, the gradients, the learning rate, and updates that were refused."""

from __future__ import annotations

import math

import numpy as np

from training.findings import FEWEST_RECORDS, Card, Finding, Records, training_records
from training.loss_bands import stable_part

CLIPPED_FRAC = 0.8
"""Share of stable records with clipped gradients above which the clip norm sets the step size."""

GROWN = 3.0
"""Growth of the gradient norm over the stable part that leads to divergence."""

ROUGH_NORM = 10.0
"""A gradient norm this many times the median is a spike, where norms do not spread widely by themselves."""


def not_learning(records: Records, card: Card) -> list[Finding]:
    """A loss that stays where it began, and streaks with it. A run that starts from a drafter may well stay where it is."""
    training = [record for record in training_records(records) if "loss" in record]
    if len(training) < FEWEST_RECORDS or card.get("init_from"):
        return []
    tenth = max(2, len(training) // 10)
    losses = np.array([record["loss"] for record in training])
    streaks = np.array([record.get("tau", 1.0) - 1 for record in training])
    # Much of the fall may be over within the first tenth, so its highest losses count.
    first, last = float(np.sort(losses[:tenth])[-3:].mean()), float(np.median(losses[-tenth:]))
    rose = np.median(streaks[-tenth:]) > 1.2 * np.median(streaks[:tenth]) + 0.05
    if last < 0.95 * first or rose:
        return []
    return [
        Finding(
            "not learning",
            "fault",
            f"the loss went from {first:.2f} to {last:.2f}",
            "the features do not fit the text (another target, layers off by one), or the learning rate is far off",
            "check the target against the set's; then try optimizer.learning_rate three times lower and higher",
        )
    ]


def slots_that_do_not_learn(records: Records, card: Card) -> list[Finding]:
    """Slots far worse than both neighbours, by more than their counts can explain."""
    training = stable_part(training_records(records))
    slots = sorted({int(name.rpartition("_")[2]) for r in training for name in r if name.startswith("accuracy_slot_")})
    found: dict[int, tuple[float, float]] = {}
    for slot in slots:
        reached, right = 0.0, 0.0
        for record in training:
            if f"accuracy_slot_{slot}" in record:
                before = math.prod(record.get(f"accuracy_slot_{s}", 0.0) for s in range(1, slot))
                reached += record["blocks"] * before
                right += record["blocks"] * before * record[f"accuracy_slot_{slot}"]
        if reached >= 200:
            found[slot] = (reached, right / reached)
    findings = []
    for slot, (reached, accuracy) in found.items():
        around = [found[near][1] for near in (slot - 1, slot + 1) if near in found]
        if not around:
            continue
        usual = min(around)
        error = math.sqrt(max(usual * (1 - usual), 1e-6) / reached)
        if accuracy < usual / 2 and usual - accuracy > 6 * error:
            findings.append(
                Finding(
                    "dead slot",
                    "fault",
                    f"slot {slot} is right in {accuracy:.1%} of the blocks that reach it, its neighbours in {usual:.1%}",
                    "labels or positions of that slot are shifted, or its weight in the loss is zero",
                    "check loss.gamma and the block layout; run the parity tests of the drafter",
                )
            )
    return findings


def rough_gradients(records: Records, card: Card) -> list[Finding]:
    """Gradients that vanish, spike, grow, or are clipped all the time."""
    training = stable_part(training_records(records))
    norms = np.array([record.get("gradient_norm", np.nan) for record in training], dtype=np.float64)
    norms = norms[~np.isnan(norms)]
    if len(norms) < FEWEST_RECORDS // 2:
        return []
    if np.median(norms) == 0:
        return [
            Finding(
                "no gradient",
                "fault",
                "the gradient norm is 0",
                "no block has a label, or the loss does not reach the weights",
                "check loss_mask in the set, and blocks.anchors",
            )
        ]
    clip = ((card.get("recipe") or {}).get("optimizer") or {}).get("clip_norm")
    return [*_spikes(norms), *_growth(norms), *_clipping(norms, clip)]


def odd_learning_rate(records: Records, card: Card) -> list[Finding]:
    """A rate that is zero, jumps, or never came down."""
    training = training_records(records)
    rates = np.array([record.get("learning_rate", np.nan) for record in training], dtype=np.float64)
    if len(rates) < 5 or np.isnan(rates).all():
        return []
    peak = float(np.nanmax(rates))
    if peak == 0:
        return [
            Finding("learning rate", "fault", "the learning rate is 0 throughout", "the schedule is over before it began",
                    "check epochs and max_steps against the schedule")
        ]  # fmt: skip
    falls = np.diff(rates) / peak
    after_peak = int(np.nanargmax(rates))
    rises = np.flatnonzero(falls[after_peak:] > 0.1)
    if len(rises):
        step = training[after_peak + int(rises[0]) + 1]["step"]
        return [
            Finding(
                "learning rate",
                "fault",
                f"the learning rate rises again at step {step}",
                "the run went on with another schedule, or from another step than it ended at",
                "resume with the recipe that the run began with; the number of steps is part of the schedule",
            )
        ]
    return []


def steps_left_out(records: Records, card: Card) -> list[Finding]:
    """Updates that the guard refused."""
    skips = [record for record in records if record["kind"] == "skip"]
    if not skips:
        return []
    steps = ", ".join(str(record["step"]) for record in skips[:5])
    return [
        Finding(
            "steps left out",
            "warning",
            f"{len(skips)} updates were not applied (steps {steps}{', ...' if len(skips) > 5 else ''})",
            "a loss that was no number, or a spike: damaged rows, or overflow in bfloat16",
            "look at the rows of those steps; compute.dtype float32 on one of them tells data from arithmetic",
        )
    ]


def _spikes(norms: np.ndarray) -> list[Finding]:
    median = float(np.median(norms))
    # Norms that spread widely by themselves have to jump further.
    spread = 1.4826 * float(np.median(np.abs(np.log(np.maximum(norms, 1e-12) / median))))
    bound = max(ROUGH_NORM, math.exp(8 * spread))
    spikes = int((norms > bound * median).sum())
    if not spikes:
        return []
    return [
        Finding(
            "gradient spikes",
            "warning",
            f"{spikes} of {len(norms)} records have a gradient norm over {bound:.0f} times the median of {median:.2g}",
            "single batches pull hard: damaged rows, or a learning rate at the edge",
            "look at the rows of those steps; lower optimizer.learning_rate or guard.spike_factor",
        )
    ]


def _growth(norms: np.ndarray) -> list[Finding]:
    third = max(1, len(norms) // 3)
    growth = np.median(norms[-third:]) / np.median(norms[:third])
    if growth <= GROWN:
        return []
    return [
        Finding(
            "growing gradients",
            "fault",
            f"the gradient norm grew {growth:.1f}-fold over the stable part",
            "the run is on its way to diverge",
            "lower optimizer.learning_rate, or lengthen optimizer.warmup_frac",
        )
    ]


def _clipping(norms: np.ndarray, clip: float | None) -> list[Finding]:
    median = float(np.median(norms))
    if not clip or (norms > clip).mean() <= CLIPPED_FRAC or median <= 10 * clip:
        return []
    return [
        Finding(
            "always clipped",
            "warning",
            f"{(norms > clip).mean():.0%} of steps are clipped to {clip:g}, the median norm is {median:.3g}",
            "the clip norm, not the learning rate, sets the size of the steps",
            "raise optimizer.clip_norm, or lower the learning rate and see whether the loss falls faster",
        )
    ]

"""What can be wrong with a run, read off its records: each check returns findings that name a cause and a knob, or nothing.

Checks are pure functions of the records of metrics.jsonl and of run.json. Thresholds are set so that a healthy run says
nothing: a finding that is often wrong teaches people not to read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from training.loss_bands import Band, find_bands, stable_part

Records = list[dict[str, Any]]
Card = dict[str, Any]

FEWEST_RECORDS = 20
"""Records of training below which most checks say nothing."""

HOMOGENEOUS_FACTOR = 2.0
"""Batches are called homogeneous when shares of buckets vary this many times as much as the best interleaving would."""

WAITING_FRAC = 0.15
"""Share of time waiting for data above which the data path is the bottleneck."""

CLIPPED_FRAC = 0.8
"""Share of stable records with clipped gradients above which the clip norm sets the step size."""

ROUGH_NORM = 10.0
"""A gradient norm this many times the median is a spike."""

FEWEST_ANCHORS_PER_ROW = 8
"""Anchors a row gets on average below which short documents hardly train."""

UNUSED_FRAC = 0.5
"""Share of the anchor budget that may be padding."""

GENERALISATION_GAP = 1.35
"""Training tau over held-out tau above which the run has learned its rows by heart, or decodes something else."""

DECODING_GAP = 1.15
"""Held-out tau by pointer walk over decoded tau (or the reverse) above which training and decoding disagree."""


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


def find_symptoms(records: Records, card: Card, evaluation: dict[str, Any] | None = None) -> list[Finding]:
    """Return everything that looks wrong, faults first. `evaluation` is what `drafter evaluate` wrote, where it did."""
    findings = [finding for check in CHECKS for finding in check(records, card)]
    if evaluation is not None:
        findings += decoding_disagrees(records, evaluation)
    return sorted(findings, key=lambda finding: finding.severity != "fault")


def loss_in_bands(records: Records, card: Card) -> list[Finding]:
    """Losses that gather in bands, with what each band is made of."""
    training = _training(records)
    bands = find_bands(training)
    if len(bands) < 2:
        return []
    said = "; ".join(
        f"{band.share:.0%} of records around {band.loss:.2f}"
        + (f", of {band.group} {band.name} ({band.lift:.1f} x its usual share)" if band.name else "")
        for band in bands
    )
    lifted = [band for band in bands if band.name]
    if lifted:
        cause = f"batches are homogeneous: a record's loss depends on which {lifted[0].group} its batches hold"
        knob = (
            "interleave the buckets within every window of batches (batches.buckets, batches.per_step); the loss by bucket, "
            "not the total, says whether the run learns"
        )
    else:
        cause = "two or more kinds of steps that neither length bucket nor domain tells apart"
        knob = "look for rows of one source in a row in the set's order, or for ranks that see different data"
    return [Finding("loss bands", "fault", said, cause, knob, tuple(bands))]


def loss_ladder(records: Records, card: Card) -> list[Finding]:
    """Records of one bucket in a row, and a loss that steps with them."""
    training = stable_part(_training(records))
    if len(training) < FEWEST_RECORDS:
        return []
    dominant = [_dominant_bucket(record) for record in training]
    runs = 1 + sum(one != two for one, two in zip(dominant, dominant[1:], strict=False))
    counts = np.bincount(np.unique(dominant, return_inverse=True)[1])
    expected = 1 + len(dominant) * (1 - ((counts / len(dominant)) ** 2).sum())
    residuals = _detrended_loss(training)
    correlation = _autocorrelation(residuals, 1)
    if len(counts) < 2 or runs > expected / 2 or correlation < 0.4:
        return []
    return [
        Finding(
            "loss ladder",
            "fault",
            f"{len(dominant)} records come in {runs} runs of one leading bucket (mixed order: about {expected:.0f}); neighbouring "
            f"losses correlate at {correlation:.2f}",
            "buckets are trained one after another, so the loss climbs a ladder and resets where the next bucket begins",
            "order batches by proportional stride over buckets; a shuffle of homogeneous batches is not enough",
        )
    ]


def homogeneous_batches(records: Records, card: Card) -> list[Finding]:
    """Shares of buckets that vary from record to record by more than whole batches make inevitable."""
    training = _training(records)
    shares, batches = _bucket_shares(training), _batches_per_record(card)
    if len(training) < FEWEST_RECORDS or shares.shape[1] < 2:
        return []
    expected = shares.mean(axis=0)
    # Interleaved by stride, every bucket's count is within one batch of its share, whatever the window.
    bound = HOMOGENEOUS_FACTOR * max(1.0 / batches, 0.05)
    outside = (np.abs(shares - expected) > bound).any(axis=1).mean()
    if batches < 2 or outside < 0.2:
        return []
    return [
        Finding(
            "homogeneous batches",
            "fault",
            f"in {outside:.0%} of records some bucket's share of the blocks is off its mean by more than {bound:.0%}, though a record "
            f"spans {batches:.0f} micro-batches",
            "the order of batches does not mix length buckets, or its state was lost when the run went on",
            "check that the run was resumed from its own checkpoint; raise batches.per_step so that a step spans all buckets",
        )
    ]


def starved_of_data(records: Records, card: Card) -> list[Finding]:
    """Steps that wait for their batches or features."""
    waits = np.array([record["wait_frac"] for record in stable_part(_training(records)) if "wait_frac" in record])
    if len(waits) < 5 or np.median(waits) < WAITING_FRAC:
        return []
    depths = [record["queue_depth"] for record in stable_part(_training(records)) if "queue_depth" in record]
    split = ((card.get("recipe") or {}).get("placement") or {}).get("mode") == "split"
    return [
        Finding(
            "waiting for data",
            "warning",
            f"{np.median(waits):.0%} of the time goes by waiting; the queue holds {np.median(depths):.0f} batches (median)"
            if depths
            else f"{np.median(waits):.0%} of the time goes by waiting",
            "target ranks make features more slowly than drafter ranks use them"
            if split
            else "batches are made too slowly",
            "raise placement.target_ranks, or train colocated"
            if split
            else "raise batches.prefetch; keep the set on a local disk",
        )
    ]


def anchors_too_few(records: Records, card: Card) -> list[Finding]:
    """Rows that get hardly an anchor, or a budget that is mostly padding."""
    recipe, buckets = card.get("recipe") or {}, card.get("buckets") or []
    anchors = (recipe.get("blocks") or {}).get("anchors")
    if not anchors or not buckets:
        return []
    findings = []
    crowded = [
        (number, bucket, anchors * bucket["batches"] / bucket["rows"])
        for number, bucket in enumerate(buckets)
        if bucket["rows"] and anchors * bucket["batches"] / bucket["rows"] < FEWEST_ANCHORS_PER_ROW
    ]
    if crowded:
        number, bucket, each = min(crowded, key=lambda one: one[2])
        findings.append(
            Finding(
                "few anchors per row",
                "warning",
                f"bucket {number} (rows of {bucket['shortest']} to {bucket['longest']} tokens) gets {each:.1f} anchors a row",
                "many short rows share one budget of anchors, so most of their tokens are never predicted",
                f"raise blocks.anchors to {math.ceil(anchors * FEWEST_ANCHORS_PER_ROW / each / 64) * 64}, or lower batches.tokens",
            )
        )
    training = stable_part(_training(records))
    budget = anchors * _batches_per_record(card)
    used = np.median([record["blocks"] / budget for record in training]) if training else 1.0
    if used < UNUSED_FRAC:
        findings.append(
            Finding(
                "anchors unused",
                "warning",
                f"{1 - used:.0%} of the blocks of a micro-batch are padding",
                "there are fewer positions to predict from than blocks.anchors asks for",
                f"lower blocks.anchors to about {max(8, round(anchors * float(used) * 1.1))}, or raise batches.tokens",
            )
        )
    return findings


def rough_gradients(records: Records, card: Card) -> list[Finding]:
    """Gradients that are clipped all the time, spike, grow, or vanish."""
    training = stable_part(_training(records))
    norms = np.array([record.get("gradient_norm", np.nan) for record in training], dtype=np.float64)
    if len(norms) < FEWEST_RECORDS // 2 or np.isnan(norms).all():
        return []
    findings, median = [], float(np.nanmedian(norms))
    clip = ((card.get("recipe") or {}).get("optimizer") or {}).get("clip_norm")
    if median == 0:
        findings.append(
            Finding(
                "no gradient",
                "fault",
                "the gradient norm is 0",
                "no block has a label, or the loss does not reach the weights",
                "check loss_mask in the set, and blocks.anchors",
            )
        )
        return findings
    if np.nanmax(norms) > ROUGH_NORM * median:
        spikes = int((norms > ROUGH_NORM * median).sum())
        findings.append(
            Finding(
                "gradient spikes",
                "warning",
                f"{spikes} of {len(norms)} records have a gradient norm over {ROUGH_NORM:g} times the median of {median:.2g}",
                "single batches pull hard: damaged rows, or a learning rate at the edge",
                "look at the rows of those steps; lower optimizer.learning_rate or guard.spike_factor",
            )
        )
    third = max(1, len(norms) // 3)
    growth = np.nanmedian(norms[-third:]) / np.nanmedian(norms[:third])
    if growth > 4:
        findings.append(
            Finding(
                "growing gradients",
                "fault",
                f"the gradient norm grew {growth:.1f}-fold over the stable part",
                "the run is on its way to diverge",
                "lower optimizer.learning_rate, or lengthen optimizer.warmup_frac",
            )
        )
    if clip and (norms > clip).mean() > CLIPPED_FRAC and median > 10 * clip:
        findings.append(
            Finding(
                "always clipped",
                "warning",
                f"{(norms > clip).mean():.0%} of steps are clipped to {clip:g}, the median norm is {median:.3g}",
                "the clip norm, not the learning rate, sets the size of the steps",
                "raise optimizer.clip_norm, or lower the learning rate and see whether the loss falls faster",
            )
        )
    return findings


def odd_learning_rate(records: Records, card: Card) -> list[Finding]:
    """A rate that is zero, jumps, or never came down."""
    training = _training(records)
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


def slots_that_do_not_learn(records: Records, card: Card) -> list[Finding]:
    """Slots far worse than both neighbours, by more than their counts can explain."""
    training = stable_part(_training(records))
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


def not_learning(records: Records, card: Card) -> list[Finding]:
    """A loss that stays where it began."""
    losses = [record["loss"] for record in _training(records) if "loss" in record]
    if len(losses) < FEWEST_RECORDS:
        return []
    tenth = max(2, len(losses) // 10)
    first, last = float(np.median(losses[:tenth])), float(np.median(losses[-tenth:]))
    if last < 0.95 * first:
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


def train_and_heldout_disagree(records: Records, card: Card) -> list[Finding]:
    """Held-out tau that falls, or stays far below what training blocks say."""
    training, heldout = _training(records), [r for r in records if r["kind"] == "heldout"]
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
    steps_left_out,
    starved_of_data,
)
"""In the order in which a person would ask."""


def _training(records: Records) -> Records:
    return [record for record in records if record["kind"] == "train"]


def _bucket_shares(records: Records) -> np.ndarray:
    """Return the share of blocks of every bucket [records, buckets]."""
    names = sorted({name for record in records for name in record.get("by_bucket", {})})
    rows = [
        [record.get("by_bucket", {}).get(name, {}).get("blocks", 0.0) for name in names]
        for record in records
        if record.get("by_bucket")
    ]
    counts = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)


def _batches_per_record(card: Card) -> float:
    recipe = card.get("recipe") or {}
    return float((recipe.get("batches") or {}).get("per_step", 1) * (recipe.get("logging") or {}).get("every", 1))


def _dominant_bucket(record: dict[str, Any]) -> str:
    buckets = record.get("by_bucket") or {"": {"blocks": 1.0}}
    return max(buckets, key=lambda name: buckets[name].get("blocks", 0.0))


def _detrended_loss(records: Records) -> np.ndarray:
    from training.loss_bands import detrended

    return detrended(np.array([record["step"] for record in records]), np.array([record["loss"] for record in records]))


def _autocorrelation(values: np.ndarray, lag: int) -> float:
    centred = values - values.mean()
    return float((centred[:-lag] * centred[lag:]).sum() / max((centred**2).sum(), 1e-12))

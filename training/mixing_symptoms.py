"""Whether the order of batches mixes: losses in bands, ladders of buckets, records of one kind.

A batch holds rows of about one length. Unless batches of all lengths are interleaved, the loss of a step says which bucket it
saw, not how well the drafter does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from training.findings import FEWEST_RECORDS, Card, Finding, Records, batches_per_record, training_records
from training.loss_bands import detrended, find_bands, stable_part

HOMOGENEOUS_FACTOR = 2.0
"""Batches are called homogeneous when shares of buckets vary this many times as much as the best interleaving would."""


def loss_in_bands(records: Records, card: Card) -> list[Finding]:
    """Losses that gather in bands, with what each band is made of."""
    training = training_records(records)
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
    training = stable_part(training_records(records))
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
    training = training_records(records)
    shares, batches = _bucket_shares(training), batches_per_record(card)
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


def _dominant_bucket(record: dict[str, Any]) -> str:
    buckets = record.get("by_bucket") or {"": {"blocks": 1.0}}
    return max(buckets, key=lambda name: buckets[name].get("blocks", 0.0))


def _detrended_loss(records: Records) -> np.ndarray:
    return detrended(np.array([record["step"] for record in records]), np.array([record["loss"] for record in records]))


def _autocorrelation(values: np.ndarray, lag: int) -> float:
    centred = values - values.mean()
    return float((centred[:-lag] * centred[lag:]).sum() / max((centred**2).sum(), 1e-12))

"""Whether the drafter gets enough to learn from: batches in time, and anchors for every row."""

from __future__ import annotations

import math

import numpy as np

from training.findings import Card, Finding, Records, batches_per_record, training_records
from training.loss_bands import stable_part

WAITING_FRAC = 0.15
"""Share of time waiting for data above which the data path is the bottleneck."""

FEWEST_ANCHORS_PER_ROW = 8
"""Anchors a row gets on average below which short documents hardly train."""

UNUSED_FRAC = 0.5
"""Share of the anchor budget that may be padding."""


def starved_of_data(records: Records, card: Card) -> list[Finding]:
    """Steps that wait for their batches or features."""
    waits = np.array(
        [record["wait_frac"] for record in stable_part(training_records(records)) if "wait_frac" in record]
    )
    if len(waits) < 5 or np.median(waits) < WAITING_FRAC:
        return []
    depths = [record["queue_depth"] for record in stable_part(training_records(records)) if "queue_depth" in record]
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
    """Rows that get hardly an anchor."""
    recipe, buckets = card.get("recipe") or {}, card.get("buckets") or []
    anchors = (recipe.get("blocks") or {}).get("anchors")
    if not anchors or not buckets:
        return []
    crowded = [
        (number, bucket, anchors * bucket["batches"] / bucket["rows"])
        for number, bucket in enumerate(buckets)
        if bucket["rows"] and anchors * bucket["batches"] / bucket["rows"] < FEWEST_ANCHORS_PER_ROW
    ]
    if not crowded:
        return []
    number, bucket, each = min(crowded, key=lambda one: one[2])
    return [
        Finding(
            "few anchors per row",
            "warning",
            f"bucket {number} (rows of {bucket['shortest']} to {bucket['longest']} tokens) gets {each:.1f} anchors a row",
            "many short rows share one budget of anchors, so most of their tokens are never predicted",
            f"raise blocks.anchors to {math.ceil(anchors * FEWEST_ANCHORS_PER_ROW / each / 64) * 64}, or lower batches.tokens",
        )
    ]


def anchors_unused(records: Records, card: Card) -> list[Finding]:
    """A budget of anchors that is mostly padding."""
    anchors = ((card.get("recipe") or {}).get("blocks") or {}).get("anchors")
    training = stable_part(training_records(records))
    if not anchors or not training:
        return []
    budget = anchors * batches_per_record(card)
    used = np.median([record["blocks"] / budget for record in training])
    if used < UNUSED_FRAC:
        return [
            Finding(
                "anchors unused",
                "warning",
                f"{1 - used:.0%} of the blocks of a micro-batch are padding",
                "there are fewer positions to predict from than blocks.anchors asks for",
                f"lower blocks.anchors to about {max(8, round(anchors * float(used) * 1.1))}, or raise batches.tokens",
            )
        ]
    return []

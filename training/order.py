"""The order of training data: which rows make the n-th micro-batch, a pure function of (rows, settings, seed, n).

Rows are cut by length into buckets of equal total cost; every epoch deals a bucket's rows at random into micro-batches,
evens out their costs, and interleaves the buckets by proportional stride. So any window of consecutive micro-batches has
the mix of the whole. Shuffled batches of one length each come in homogeneous runs instead, which shows as a loss in bands
with a ladder of resets. Nothing here depends on the number of processes: a step takes the next `per_step` micro-batches,
and whoever is there shares them. Epochs follow one another without a seam or a dropped remainder.

Cost is in token equivalents: what a row costs in the target's prefill, its quadratic attention included.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

import numpy as np

_EVEN_ENOUGH = 0.01
"""Batches stop exchanging rows when their costs differ by less than this fraction of the mean."""

_MOST_ROUNDS = 400
"""Rounds of exchanges at most. Most parts are even after forty; rows cut to one length take the rest."""


class DataOrder:
    """The endless sequence of micro-batches over a set's rows."""

    def __init__(self, lengths: np.ndarray, *, tokens: int, num_buckets: int, seed: int, hidden_size: int):
        """Cut rows into buckets.

        Args:
            lengths: int64 [rows], tokens of every row.
            tokens: cost of a micro-batch, at most, on average. Rows are never split, so one may be over by part of a row.
            num_buckets: length buckets; fewer when there are too few batches to fill them.
            seed: seeds the dealing of every epoch.
            hidden_size: the target's width, which sets what attention costs beside matrix products.
        """
        assert len(lengths) > 0 and lengths.min() > 0
        self.costs = row_costs(lengths, hidden_size)
        self.seed = seed
        num_batches = min(int(np.ceil(self.costs.sum() / tokens)), len(lengths))
        num_buckets = min(num_buckets, num_batches)
        self.batches_per_bucket = np.array(
            [num_batches // num_buckets + (b < num_batches % num_buckets) for b in range(num_buckets)]
        )
        self.bucket_rows = _cut_buckets(self.costs, self.batches_per_bucket)
        self.batches_per_bucket = np.minimum(self.batches_per_bucket, [len(rows) for rows in self.bucket_rows])
        self.interleaving = interleave(self.batches_per_bucket)
        self.bucket_lengths = [(int(lengths[rows].min()), int(lengths[rows].max())) for rows in self.bucket_rows]
        self._epoch = lru_cache(maxsize=2)(self._deal_epoch)

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches in which every row occurs once."""
        return len(self.interleaving)

    def batch(self, index: int) -> tuple[np.ndarray, int]:
        """Return (rows, bucket) of the micro-batch at 0-based position `index` since the start of training."""
        epoch, place = divmod(index, self.batches_per_epoch)
        bucket, number = self.interleaving[place]
        return self._epoch(epoch)[bucket][number], int(bucket)

    def _deal_epoch(self, epoch: int) -> list[list[np.ndarray]]:
        """Return the rows of every batch of an epoch, by bucket and by number within the bucket."""
        generator = np.random.default_rng([self.seed, epoch])
        parts: list[list[int]] = []
        for rows, num_batches in zip(self.bucket_rows, self.batches_per_bucket, strict=True):
            dealt = deal(self.costs[rows], int(num_batches), generator)
            parts += [rows[part].tolist() for part in dealt]
        even_out(self.costs, parts, generator)
        batches = iter([np.array(part, dtype=np.int64) for part in parts])
        return [[next(batches) for _ in range(n)] for n in self.batches_per_bucket]


def row_costs(lengths: np.ndarray, hidden_size: int) -> np.ndarray:
    """Return float64 [rows]: token equivalents of each row's prefill.

    A transformer layer of width H takes about 24 H^2 FLOP a token in matrix products and 2 n H a token in causal attention
    over n tokens (scores and values, half of the square): attention adds n / (12 H).
    """
    return lengths * (1.0 + lengths / (12.0 * hidden_size))


def interleave(batches_per_bucket: np.ndarray) -> np.ndarray:
    """Return int64 [batches, 2]: (bucket, number within the bucket) in proportional stride.

    Batch i of n of a bucket stands at (i + 1/2) / n of the epoch. Buckets that meet at one place follow one another far
    apart in length (bit-reversed), so that even windows shorter than the number of buckets are mixed.
    """
    bucket = np.repeat(np.arange(len(batches_per_bucket)), batches_per_bucket)
    number = np.concatenate([np.arange(n) for n in batches_per_bucket])
    place = (number + 0.5) / batches_per_bucket[bucket]
    order = np.lexsort((_bit_reversed_ranks(len(batches_per_bucket))[bucket], place))
    return np.stack([bucket[order], number[order]], axis=1)


def deal(costs: np.ndarray, num_batches: int, generator: np.random.Generator) -> list[list[int]]:
    """Deal items at random into `num_batches` parts of roughly equal cost, none empty.

    Items go, dearest first (by a cost blurred by a quarter, so that epochs differ), to the part that is cheapest so far.
    """
    assert 0 < num_batches <= len(costs)
    order = np.argsort(-costs * generator.uniform(0.75, 1.25, len(costs)), kind="stable").tolist()
    parts = [[item] for item in order[:num_batches]]
    heap = [(float(costs[item]), part) for part, item in enumerate(order[:num_batches])]
    heapq.heapify(heap)
    for item in order[num_batches:]:
        load, part = heap[0]
        parts[part].append(item)
        heapq.heapreplace(heap, (load + float(costs[item]), part))
    return [parts[part] for part in generator.permutation(num_batches)]


def even_out(costs: np.ndarray, parts: list[list[int]], generator: np.random.Generator) -> None:
    """Even out the costs of parts, in place: dear parts swap an item with cheap ones, or hand one over.

    In every round the dearest part meets the cheapest, the next the next, and so on; where that does not help, the next
    round pairs at random. An exchange evens out two parts only when it moves less than their difference, so parts trade items
    of about the same cost, and the buckets they came from stay what they are but for a few rows at their edges.
    """
    loads = np.array([costs[part].sum() for part in parts])
    for round_number in range(_MOST_ROUNDS):
        ranked = np.argsort(loads, kind="stable")
        cheap, dear = ranked[: len(parts) // 2], ranked[::-1][: len(parts) // 2]
        if round_number % 2:
            cheap = generator.permutation(cheap)
        unequal = loads[dear] - loads[cheap] > _EVEN_ENOUGH * loads.mean()
        if loads.max() - loads.min() <= _EVEN_ENOUGH * loads.mean():
            return
        for one, other in zip(dear[unequal].tolist(), cheap[unequal].tolist(), strict=True):
            _exchange(costs, parts, loads, one, other)


def _exchange(costs: np.ndarray, parts: list[list[int]], loads: np.ndarray, dear: int, cheap: int) -> None:
    """Make the exchange that best evens out two parts (a swap, or one item handed over), if there is one."""
    gap = loads[dear] - loads[cheap]
    gives, takes = np.array(parts[dear]), np.array(parts[cheap])
    takes_cost = np.append(costs[takes], 0.0) if len(gives) > 1 else costs[takes]
    moved = costs[gives][:, None] - takes_cost[None, :]
    left = np.abs(gap - 2 * moved)
    give, take = np.unravel_index(int(left.argmin()), left.shape)
    if left[give, take] >= gap:
        return
    item = parts[dear].pop(int(give))
    if take < len(takes):
        parts[dear].append(parts[cheap].pop(int(take)))
    parts[cheap].append(item)
    loads[dear] -= moved[give, take]
    loads[cheap] += moved[give, take]


def _cut_buckets(costs: np.ndarray, batches_per_bucket: np.ndarray) -> list[np.ndarray]:
    """Return the rows of every bucket: ascending cost, cut where the running cost reaches a bucket's share of batches."""
    order = np.argsort(costs, kind="stable")
    reached = np.cumsum(costs[order]) - costs[order] / 2
    edges = np.cumsum(batches_per_bucket)[:-1] / batches_per_bucket.sum() * costs.sum()
    return [rows for rows in np.split(order, np.searchsorted(reached, edges)) if len(rows)]


def _bit_reversed_ranks(count: int) -> np.ndarray:
    width = max(1, (count - 1).bit_length())
    reversed_bits = [int(f"{value:0{width}b}"[::-1], 2) for value in range(count)]
    return np.argsort(np.argsort(reversed_bits))

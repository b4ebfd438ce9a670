"""The order of data and the micro-batches made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.batches import PAD_TO_TOKENS, Prefetched, RowStore
from training.order import DataOrder, deal, even_out, interleave, row_costs

HIDDEN = 5120


def lengths_like_real_ones(num_rows: int, longest: int, seed: int = 0) -> np.ndarray:
    """Log-normal, and cut: a good part of the rows is exactly the longest allowed."""
    drawn = np.random.default_rng(seed).lognormal(6.3, 0.9, num_rows)
    return np.clip(drawn.astype(np.int64), 8, longest)


def make_order(lengths: np.ndarray, tokens: int = 8192, seed: int = 0, num_buckets: int = 8) -> DataOrder:
    return DataOrder(lengths, tokens=tokens, num_buckets=num_buckets, seed=seed, hidden_size=HIDDEN)


def worst_deviation(buckets: np.ndarray, window: int = 64) -> float:
    """Most batches by which any window of consecutive batches differs from the buckets' share of the whole."""
    one_hot = np.eye(buckets.max() + 1)[buckets]
    running = np.concatenate([np.zeros((1, one_hot.shape[1])), one_hot.cumsum(axis=0)])
    return float(np.abs(running[window:] - running[:-window] - window * one_hot.mean(axis=0)).max())


def test_every_window_of_64_batches_has_each_bucket_within_one_batch_of_its_share() -> None:
    order = make_order(lengths_like_real_ones(6000, 3072))
    buckets = np.array([order.batch(index)[1] for index in range(3 * order.batches_per_epoch)])
    assert worst_deviation(buckets) <= 1
    shuffled = np.random.default_rng(0).permutation(buckets)
    assert worst_deviation(shuffled) > 5, "shuffling alone would do, and the test shows nothing"


@settings(deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=200), min_size=1, max_size=8))
def test_any_prefix_of_the_interleaving_has_each_bucket_near_its_share(counts: list[int]) -> None:
    order = interleave(np.array(counts))
    assert Counter(map(tuple, order.tolist())) == Counter((b, i) for b, n in enumerate(counts) for i in range(n))
    share = np.array(counts) / sum(counts)
    seen = np.eye(len(counts))[order[:, 0]].cumsum(axis=0)
    expected = np.arange(1, len(order) + 1)[:, None] * share
    assert np.abs(seen - expected).max() <= 1 + len(counts) / 2


@pytest.mark.parametrize("longest", [1024, 3072])
def test_ranks_get_equal_cost_within_3_percent_in_every_step(longest: int) -> None:
    order = make_order(lengths_like_real_ones(6000, longest))
    costs = np.array([order.costs[order.batch(index)[0]].sum() for index in range(order.batches_per_epoch)])
    by_step = costs[: len(costs) // 8 * 8].reshape(-1, 8)
    assert ((by_step.max(axis=1) - by_step.min(axis=1)) / costs.mean()).max() < 0.03


def test_rows_shorter_than_a_quarter_of_a_batch_never_overfill_one_by_more_than_3_percent() -> None:
    lengths = lengths_like_real_ones(3000, 2048)
    order = make_order(lengths)
    assert max(lengths[order.batch(index)[0]].sum() for index in range(order.batches_per_epoch)) < 8192 * 1.03


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(min_value=2, max_value=128), min_size=1, max_size=80),
    tokens=st.integers(min_value=128, max_value=600),
    num_buckets=st.integers(min_value=1, max_value=8),
)
def test_an_epoch_holds_every_row_once_and_no_batch_is_empty(lengths: list[int], tokens: int, num_buckets: int) -> None:
    order = make_order(np.array(lengths), tokens=tokens, num_buckets=num_buckets)
    for epoch in range(2):
        first = epoch * order.batches_per_epoch
        batches = [order.batch(first + place)[0] for place in range(order.batches_per_epoch)]
        assert all(len(rows) for rows in batches)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))


def test_the_order_is_a_function_of_seed_and_place_alone() -> None:
    lengths = lengths_like_real_ones(400, 1024)
    forwards, backwards = make_order(lengths), make_order(lengths)
    places = range(2 * forwards.batches_per_epoch)
    one = [forwards.batch(place)[0].tolist() for place in places]
    other = [backwards.batch(place)[0].tolist() for place in reversed(places)][::-1]
    assert one == other
    assert one != [make_order(lengths, seed=1).batch(place)[0].tolist() for place in places]


def test_epochs_mix_rows_anew() -> None:
    order = make_order(lengths_like_real_ones(2000, 1024))
    mates = []
    for epoch in range(2):
        batches = [order.batch(epoch * order.batches_per_epoch + place)[0] for place in range(order.batches_per_epoch)]
        mates.append({tuple(sorted(pair)) for rows in batches for pair in zip(rows, rows[1:], strict=False)})
    assert len(mates[0] & mates[1]) < 0.2 * len(mates[0])


def test_evening_out_keeps_the_items_and_never_raises_the_spread() -> None:
    costs = np.random.default_rng(3).uniform(1, 10, 200)
    parts = deal(costs, 20, np.random.default_rng(0))
    before = [costs[part].sum() for part in parts]
    even_out(costs, parts, np.random.default_rng(0))
    after = [costs[part].sum() for part in parts]
    assert sorted(item for part in parts for item in part) == list(range(200))
    assert max(after) - min(after) <= min(max(before) - min(before), 0.011 * np.mean(after))


def test_attention_makes_a_row_of_twelve_widths_cost_double() -> None:
    assert row_costs(np.array([1, 12 * 64]), hidden_size=64).tolist() == [1 + 1 / 768, 2 * 12 * 64]


def test_a_packed_batch_holds_its_rows_one_after_another(tiny_set: Path) -> None:
    store = RowStore(tiny_set, max_length=40)
    batch = store.pack(np.array([2, 0, 5]), bucket=1)
    assert batch.row_ids == store.row_ids(np.array([2, 0, 5])) and len(batch.domains) == 3
    assert len(batch.input_ids_T) % PAD_TO_TOKENS == 0
    for number, row in enumerate([2, 0, 5]):
        mine = batch.document_T == number
        assert int(mine.sum()) == store.lengths[row] <= 40
        assert batch.position_T[mine].tolist() == list(range(store.lengths[row]))
        assert batch.loss_mask_T[mine].any() and not batch.loss_mask_T[mine].all()
    padding = batch.document_T == -1
    assert not batch.loss_mask_T[padding].any() and bool((padding[1:] >= padding[:-1]).all())


@pytest.mark.hostile
def test_rows_without_an_anchor_are_left_out_and_counted(tmp_path: Path, write_set_rows: Callable[..., None]) -> None:
    masks = {
        "none": [0] * 6,
        "lone": [0, 1, 0, 1, 0, 1],
        "late": [0, 0, 0, 0, 1, 1],
        "good": [0, 0, 1, 1, 1, 1],
        "empty": [],
    }
    write_set_rows(
        tmp_path,
        [
            {"input_ids": list(range(len(m))), "loss_mask": m, "seq_len": len(m), "id": i, "source": "s", "domain": "d"}
            for i, m in masks.items()
        ],
        num_shards=2,
    )
    store = RowStore(tmp_path, max_length=5)
    assert store.row_ids(np.arange(len(store))) == ["good"]
    assert store.counts == {"rows": 5, "truncated": 1, "no_anchor": 4}
    assert len(RowStore(tmp_path, max_length=6)) == 2


@pytest.mark.hostile
def test_a_mask_that_does_not_fit_its_tokens_is_an_error(tmp_path: Path, write_set_rows: Callable[..., None]) -> None:
    row = {"input_ids": [1, 2, 3], "loss_mask": [1, 1], "seq_len": 3, "id": "a", "source": "s", "domain": "d"}
    write_set_rows(tmp_path, [row], num_shards=1)
    with pytest.raises(ValueError, match="row 0 has 3 tokens and a loss_mask of 2"):
        RowStore(tmp_path, max_length=8)


def test_prefetching_keeps_the_order_and_hands_over_what_went_wrong(tiny_set: Path) -> None:
    store = RowStore(tiny_set, max_length=64)
    batches = Prefetched(lambda index: store.pack(np.array([index]), 0), range(20), depth=3)
    assert [batch.row_ids for batch in batches] == [store.row_ids(np.array([index])) for index in range(20)]

    broken = Prefetched(lambda index: store.pack(np.array([index]), 0), [0, 10**6], depth=3)
    with pytest.raises(IndexError):
        list(broken)


def test_prefetching_can_be_closed_midway(tiny_set: Path) -> None:
    store = RowStore(tiny_set, max_length=64)
    batches = Prefetched(lambda index: store.pack(np.array([0]), 0), range(10**9), depth=2)
    assert isinstance(next(iter(batches)).input_ids_T, torch.Tensor)
    batches.close()
    assert batches.depth <= 2

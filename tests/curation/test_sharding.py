"""Dealing documents to shards: even in rows and tokens, alike in mix, and independent of the order of input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.sharding import deal, hash_keys


def _documents(num_documents: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lengths, domains and keys that look like real ones: long tails, eight domains of unlike size."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.lognormal(6.3, 0.9, num_documents), 16, 4096).astype(np.int32)
    domains = random.choice(8, num_documents, p=[0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02])
    return lengths, domains, random.integers(0, 2**63, num_documents).astype(np.uint64)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3)), max_size=60), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_every_document_lies_in_exactly_one_shard_and_rows_differ_by_at_most_one(
    documents: list[tuple[int, int]], num_shards: int
) -> None:
    lengths = np.array([length for length, _ in documents], dtype=np.int32)
    domains = np.array([domain for _, domain in documents], dtype=np.int64)
    dealt = deal(lengths, domains, np.arange(len(documents), dtype=np.uint64), num_shards)
    assert len(dealt) == num_shards
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(documents)))
    rows = [len(members) for members in dealt]
    assert max(rows) - min(rows) <= 1


def test_45_shards_are_even_to_half_a_per_cent_in_tokens_and_within_two_and_a_half_points_in_mix() -> None:
    lengths, domains, keys = _documents(5000)
    dealt = deal(lengths, domains, keys, 45)
    tokens = np.array([lengths[members].sum() for members in dealt])
    assert np.abs(tokens / tokens.mean() - 1).max() <= 0.005
    whole = np.bincount(domains, weights=lengths, minlength=8) / lengths.sum()
    for members in dealt:
        mix = np.bincount(domains[members], weights=lengths[members], minlength=8) / lengths[members].sum()
        assert np.abs(mix - whole).max() <= 0.025


def test_rows_of_a_domain_differ_by_at_most_one_between_shards() -> None:
    lengths, domains, keys = _documents(5000)
    dealt = deal(lengths, domains, keys, 45)
    rows = np.array([np.bincount(domains[members], minlength=8) for members in dealt])
    assert (rows.max(axis=0) - rows.min(axis=0)).max() == 1


def test_order_follows_the_keys_and_not_the_position_of_documents() -> None:
    lengths, domains, keys = _documents(700)
    shuffled = np.random.default_rng(1).permutation(700)
    one = deal(lengths, domains, keys, 9)
    other = deal(lengths[shuffled], domains[shuffled], keys[shuffled], 9)
    assert [keys[members].tolist() for members in one] == [keys[shuffled][members].tolist() for members in other]
    assert all((np.diff(keys[members].astype(object)) > 0).all() for members in one)


@pytest.mark.parametrize("num_documents", [0, 1, 44])
def test_fewer_documents_than_shards_leave_some_shards_empty(num_documents: int) -> None:
    lengths, domains, keys = _documents(num_documents)
    dealt = deal(lengths, domains, keys, 45)
    assert [len(members) for members in dealt].count(1) == num_documents
    assert len(dealt) == 45


def test_a_key_depends_on_name_seed_and_purpose() -> None:
    one = hash_keys(["a", "b"], seed=0, purpose="order")
    assert one[0] != one[1]
    assert one[0] != hash_keys(["a"], seed=1, purpose="order")[0]
    assert one[0] != hash_keys(["a"], seed=0, purpose="heldout")[0]
    assert one[1] == hash_keys(["b"], seed=0, purpose="order")[0]

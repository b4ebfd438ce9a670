"""Anchors, labels and what a block may be taught."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.blocks import (
    block_labels,
    block_token_ids,
    eligible_anchors,
    lay_out_blocks,
    predicting_hidden,
    sample_anchors,
)


def blocks_at(batch, anchors, block_size):
    anchor_A = torch.tensor(anchors)
    return lay_out_blocks(batch, anchor_A, torch.ones_like(anchor_A, dtype=torch.bool), block_size)


def test_an_anchor_and_its_successor_are_supervised_and_of_one_document(pack):
    batch = pack([([5, 6, 7, 8], [0, 1, 1, 0]), ([9, 9, 9], [1, 0, 1]), ([4, 4], [1, 1])], padding=2)
    assert torch.nonzero(eligible_anchors(batch)).squeeze(1).tolist() == [1, 7]


@pytest.mark.leak
def test_a_label_crosses_neither_a_masked_gap_nor_the_end_of_its_document(pack):
    batch = pack([([10, 11, 12, 13, 14, 15], [1, 1, 1, 0, 1, 1]), ([20, 21, 22], [1, 1, 1])], padding=1)
    labels, mask = block_labels(batch, blocks_at(batch, [0, 4, 6], 5))
    assert mask.tolist() == [[True, True, False, False], [True, False, False, False], [True, True, False, False]]
    assert labels[0, :2].tolist() == [11, 12]
    assert labels[1, :1].tolist() == [15]
    assert labels[2, :2].tolist() == [21, 22]


def test_a_block_is_the_anchor_and_masks(pack):
    batch = pack([([10, 11, 12, 13], [1, 1, 1, 1])])
    layout = blocks_at(batch, [1, 2], 3)
    assert block_token_ids(batch, layout, 99).tolist() == [[11, 99, 99], [12, 99, 99]]
    assert layout.slot_position_AK.tolist() == [[1, 2, 3], [2, 3, 4]]


def test_the_hidden_state_that_predicts_a_slot_stands_one_place_before_it(pack):
    batch = pack([([10, 11, 12, 13, 14], [1] * 5)])
    final_TH = torch.arange(5.0)[:, None]
    assert predicting_hidden(blocks_at(batch, [1], 4), final_TH)[0, :, 0].tolist() == [1, 2, 3]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    budget=st.integers(1, 64),
    seed=st.integers(0, 1 << 20),
)
def test_the_budget_is_spent_on_distinct_eligible_positions_and_no_document_goes_without(
    random_batch, lengths, budget, seed
):
    batch = random_batch(lengths)
    eligible = eligible_anchors(batch)
    anchor_A, valid_A = sample_anchors(batch, budget, torch.Generator().manual_seed(seed))
    drawn = anchor_A[valid_A]
    assert anchor_A.shape == valid_A.shape == (budget,)
    assert len(drawn) == min(budget, int(eligible.sum()))
    assert eligible[drawn].all() and drawn.unique().numel() == len(drawn)
    assert drawn.tolist() == sorted(drawn.tolist()) and valid_A[: len(drawn)].all()
    documents = batch.document_T[eligible].unique()
    if budget >= len(documents):
        assert batch.document_T[drawn].unique().tolist() == documents.tolist()


def test_documents_share_the_budget_by_supervised_length_and_positions_are_stratified(random_batch):
    batch = random_batch([104, 304, 9], prompt=4)
    anchor_A, valid_A = sample_anchors(batch, 40, torch.Generator().manual_seed(1))
    assert valid_A.all()
    assert torch.bincount(batch.document_T[anchor_A]).tolist() == [10, 29, 1]
    # The first document's 99 eligible positions make a circle of ten stretches with one anchor each.
    first = batch.position_T[anchor_A[:10]]
    gaps = torch.diff(first, append=first[:1] + 99)
    assert 1 <= gaps.min() and gaps.max() < 2 * 10


def test_every_eligible_position_is_drawn_equally_often(random_batch):
    batch = random_batch([30, 12])
    generator, drawn = torch.Generator().manual_seed(0), torch.zeros(45)
    for _ in range(2000):
        anchor_A, valid_A = sample_anchors(batch, 8, generator)
        drawn[anchor_A[valid_A]] += 1
    for document, share in ((0, 6 / 25), (1, 2 / 7)):
        counts = drawn[(batch.document_T == document).nonzero().squeeze(1)]
        counts = counts[counts > 0]
        assert (counts / 2000 - share).abs().max() < 0.05


def test_the_draw_follows_from_the_generator(random_batch):
    batch = random_batch([50, 70])
    draws = [sample_anchors(batch, 16, torch.Generator().manual_seed(s))[0] for s in (3, 3, 4)]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_a_batch_without_eligible_positions_is_all_padding(pack):
    anchor_A, valid_A = sample_anchors(pack([([1, 2, 3], [0, 0, 1])]), 4, torch.Generator())
    assert anchor_A.tolist() == [0] * 4 and not valid_A.any()

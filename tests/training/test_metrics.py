"""Figures of acceptance: by hand on a small case, additive over parts, and the walk against real decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from training.blocks import block_labels, block_token_ids, lay_out_blocks, sample_anchors
from training.losses import LossOutput, LossSettings, block_loss
from training.metrics import describe, metric_columns, metric_sums, survival_counts
from training.pointer import Walk, pointer_walk, tau, tau_by_domain


def output(correct, labelled) -> LossOutput:
    """Blocks of four predicted slots that are right or not."""
    mask = torch.arange(4) < torch.tensor(labelled)[:, None]
    return LossOutput(
        loss_sum=torch.tensor(0.0),
        weight_sum=mask.sum().float(),
        loss_AS=2.0 * mask,
        weight_AS=mask.float(),
        label_mask_AS=mask,
        correct_AS=torch.tensor(correct).bool() & mask,
        tree_blocks=torch.tensor([0, 2]),
        tree_logprobs_MSC=torch.full((2, 4, 64), 1 / 64).log(),
        tree_label_rank_MS=torch.tensor([[0, 7, 8, 0], [9, 0, 0, 0]]),
    )


BLOCKS = output([[1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]], [4, 4, 4, 2])


def test_figures_by_hand():
    figures = describe(metric_sums(BLOCKS, torch.zeros(4, dtype=torch.int64), 1)[0], 5)
    assert figures["blocks"] == 4 and figures["loss"] == 2
    assert figures["accuracy"] == pytest.approx(12 / 14)
    assert figures["streak"] == (2 + 0 + 4 + 2) / 4 and figures["tau"] == 3
    assert [figures[f"accuracy_slot_{s}"] for s in (1, 2, 3, 4)] == [3 / 4, 1, 1 / 2, 1]
    assert figures["top8_streak"] == (2 + 0) / 2


def test_sums_add_up_over_groups_and_left_out_blocks_count_nowhere():
    whole = metric_sums(BLOCKS, torch.zeros(4, dtype=torch.int64), 1)[0]
    groups = metric_sums(BLOCKS, torch.tensor([2, 0, 2, 1]), 3)
    torch.testing.assert_close(groups.sum(0), whole)
    assert metric_sums(BLOCKS, torch.tensor([0, -1, 0, -1]), 1)[0, 0] == 2
    assert groups.shape[1] == len(metric_columns(5))


def test_what_was_not_counted_is_left_out():
    empty = torch.zeros(len(metric_columns(5)), dtype=torch.float64)
    assert describe(empty, 5) == {"blocks": 0}


def test_survival_is_counted_where_there_is_a_label():
    labelled, survived = survival_counts(metric_sums(BLOCKS, torch.zeros(4, dtype=torch.int64), 1)[0], 5)
    assert labelled.tolist() == [4, 4, 3, 3] and survived.tolist() == [3, 3, 1, 1]


def test_figures_come_from_the_loss_as_it_is():
    generator = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(6, 5, 8, generator=generator), torch.randn(80, 8, generator=generator)
    labels = (hidden[:, 1:] @ head.T).argmax(-1)
    found = block_loss(hidden, labels, torch.ones_like(labels).bool(), head, LossSettings(), tree_blocks=6)
    figures = describe(metric_sums(found, torch.zeros(6, dtype=torch.int64), 1)[0], 5)
    assert figures["tau"] == 5 and figures["top8_streak"] == 4 and figures["tree64_streak"] <= 4


@pytest.mark.parity
def test_the_walks_tau_is_that_of_greedy_decoding(target, drafter, random_batch, pack):
    model = drafter(dtype=torch.float32)
    documents = []
    for seed, length in ((0, 9), (1, 5)):
        prompt = random_batch([length], padding=0, seed=seed).input_ids_T
        ids = prompt
        for _ in range(40):
            ids = torch.cat([ids, target.model(input_ids=ids[None]).logits[0, -1:].argmax(-1)])
        documents.append((ids.tolist(), [i >= length for i in range(len(ids))]))
    batch = pack(documents, padding=2)
    untaught = tau(pointer_walk(target, model, [batch]))
    _teach(target, model, batch, num_steps=60)
    walks = pointer_walk(target, model, [batch])
    assert tau(walks) > max(2, untaught)
    for walk, (ids, mask) in zip(walks, documents, strict=True):
        assert (walk.tokens, walk.rounds) == _decode(target, model, ids, mask.index(True))


def test_a_walk_skips_gaps_and_its_rounds_are_bounded(target, drafter, random_batch):
    model, batch = drafter(dtype=torch.float32), random_batch([30, 22, 3, 5], prompt=4)
    mask = batch.loss_mask_T.clone()
    mask[10:15] = False
    batch = replace(batch, loss_mask_T=mask)
    walks = pointer_walk(target, model, [batch])
    # Tokens gained are all supervised ones but the first of each stretch, which no block predicted.
    assert [walk.tokens for walk in walks] == [5 + 14, 17, 0, 0]
    assert all(walk.rounds <= walk.tokens for walk in walks)
    assert max(walk.rounds for walk in pointer_walk(target, model, [batch], max_rounds=3)) == 3


def test_tau_pools_tokens_over_rounds():
    walks = [Walk("a", "math", 12, 3), Walk("b", "chat", 5, 4), Walk("c", "math", 0, 0)]
    assert tau(walks) == 17 / 7 and tau([]) == 0
    assert tau_by_domain(walks) == {"chat": 1.25, "math": 4.0}


def _teach(target, model, batch, num_steps: int) -> None:
    """Train on one batch for some steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    generator, features = torch.Generator().manual_seed(0), target.features(batch, model.config.target_layer_ids)
    for _ in range(num_steps):
        anchor_A, valid_A = sample_anchors(batch, 32, generator)
        layout = lay_out_blocks(batch, anchor_A, valid_A, model.config.block_size)
        embeds = target.embed(block_token_ids(batch, layout, model.config.mask_token_id))
        hidden = model(features.hidden_TF, embeds, layout)
        found = block_loss(hidden, *block_labels(batch, layout), target.head_VH, LossSettings(gamma=2.5))
        optimizer.zero_grad()
        (found.loss_sum / found.weight_sum).backward()
        optimizer.step()


def _decode(target, model, ids, start) -> tuple[int, int]:
    """Greedy decoding with the drafter's caches, verified against the target's own text; the first token is the prompt's."""
    cache, tokens, rounds, position = model.empty_cache(), 0, 0, start
    features = target.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    features = torch.cat([features[layer + 1][0] for layer in model.config.target_layer_ids], dim=-1)
    while position < len(ids) - 1:
        model.extend(cache, features[cache.length : position])
        block = torch.tensor([ids[position], *[model.config.mask_token_id] * 4])
        proposed = target.logits(model.draft(cache, target.embed(block))[1:]).argmax(-1).tolist()
        streak = 0
        while streak < 4 and position + streak + 1 < len(ids) and proposed[streak] == ids[position + streak + 1]:
            streak += 1
        tokens += min(streak + 1, len(ids) - 1 - position)
        position, rounds = position + streak + 1, rounds + 1
    return tokens, rounds

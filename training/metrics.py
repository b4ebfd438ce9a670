"""What a training step says about acceptance, as sums that add up over chunks, steps and ranks.

Everything comes from the blocks of `losses.LossOutput`: accuracy, accuracy by slot given that all slots before were right,
the streak (right slots from the first on) and tau = streak + 1 (the target's bonus token included). From the sample of blocks
whose likeliest tokens were kept come the top-8 streak (consecutive slots whose token is among the drafter's 8 likeliest, an
upper bound for trees of that width) and the streaks of best-first trees. Blocks are drawn at random positions; decoding starts
its rounds right after rejections, which `pointer.py` measures.

Letters: A blocks, S predicted slots, M sampled blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.losses import LossOutput
from training.tree import tree_streaks

TREE_SIZES = (8, 16, 32, 64)
"""Nodes of the trees whose streak is logged, the root not counted."""

TOP_WIDTH = 8
"""Candidates per slot of the top-8 streak."""


def metric_columns(block_size: int) -> list[str]:
    """Return the names of the sums, in the order of `metric_sums`."""
    slots = range(1, block_size)
    return [
        *("blocks", "labels", "loss", "weight", "correct", "streak", "sampled", "top8_streak"),
        *(f"tree{size}_streak" for size in TREE_SIZES),
        *(f"labelled_{s}" for s in slots),
        *(f"reached_{s}" for s in slots),
        *(f"survived_{s}" for s in slots),
    ]


def metric_sums(output: LossOutput, group_A: Tensor, num_groups: int) -> Tensor:
    """Return float64 [num_groups, columns] of sums over the blocks of each group (domain, bucket, ...); negative groups are left
    out. Tensors of several micro-batches, steps and ranks add up; `describe` reads them."""
    label_AS = output.label_mask_AS
    right_AS = (output.correct_AS & label_AS).long().cumprod(dim=1)
    before_AS = torch.cat([torch.ones_like(right_AS[:, :1]), right_AS[:, :-1]], dim=1)
    sampled_A8 = _sampled_streaks(output)
    columns_AC = torch.cat(
        [
            label_AS[:, :1],
            label_AS.sum(dim=1, keepdim=True),
            (output.weight_AS * output.loss_AS).sum(dim=1, keepdim=True),
            output.weight_AS.sum(dim=1, keepdim=True),
            (output.correct_AS & label_AS).sum(dim=1, keepdim=True),
            right_AS.sum(dim=1, keepdim=True),
            sampled_A8,
            label_AS,
            before_AS * label_AS,
            right_AS,
        ],
        dim=1,
    ).double()
    in_group_A = group_A >= 0
    sums = columns_AC.new_zeros(num_groups, columns_AC.shape[1])
    return sums.index_add_(0, group_A[in_group_A], columns_AC[in_group_A])


def describe(sums_C: Tensor, block_size: int) -> dict[str, float]:
    """Return the figures of one row of sums by name: loss, accuracy, streak, tau, top8_streak, tree8_streak.. tree64_streak,
    accuracy_slot_1.. (given that all earlier slots were right), and blocks. What was not counted is left out."""
    named = dict(zip(metric_columns(block_size), sums_C.tolist(), strict=True))
    figures = {"blocks": named["blocks"]}
    if named["weight"]:
        figures["loss"] = named["loss"] / named["weight"]
    if named["labels"]:
        figures["accuracy"] = named["correct"] / named["labels"]
    if named["blocks"]:
        figures["streak"] = named["streak"] / named["blocks"]
        figures["tau"] = figures["streak"] + 1
    if named["sampled"]:
        for name in ("top8_streak", *(f"tree{size}_streak" for size in TREE_SIZES)):
            figures[name] = named[name] / named["sampled"]
    for slot in range(1, block_size):
        if named[f"reached_{slot}"]:
            figures[f"accuracy_slot_{slot}"] = named[f"survived_{slot}"] / named[f"reached_{slot}"]
    return figures


def survival_counts(sums_C: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Return labelled_S and survived_S of one row of sums, for losses.update_survival."""
    num_slots = block_size - 1
    labelled_S, _, survived_S = sums_C[-3 * num_slots :].split(num_slots)
    return labelled_S, survived_S


def _sampled_streaks(output: LossOutput) -> Tensor:
    """Return [A, 2 + trees]: for sampled blocks 1, the top-8 streak and the streak of each tree; zeros elsewhere."""
    rows = torch.zeros(output.label_mask_AS.shape[0], 2 + len(TREE_SIZES), device=output.label_mask_AS.device)
    if output.tree_blocks.numel() == 0:
        return rows
    top8_M = (output.tree_label_rank_MS < TOP_WIDTH).long().cumprod(dim=1).sum(dim=1)
    trees_M4 = tree_streaks(output.tree_logprobs_MSC, output.tree_label_rank_MS, TREE_SIZES)
    rows[output.tree_blocks] = torch.cat([torch.ones_like(top8_M)[:, None], top8_M[:, None], trees_M4], dim=1).float()
    return rows

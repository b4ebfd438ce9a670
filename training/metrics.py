"""What a training step says about acceptance, as sums that add up over chunks, steps and ranks.

Everything comes from the blocks of `losses.LossOutput`: accuracy, accuracy by slot given that all slots before were right,
the streak (right slots from the first on) and tau = streak + 1 (the target's bonus token included), the top-8 streak, and the
streaks of best-first trees. On held-out documents `pointer_walk` measures tau as decoding has it: the next round starts where
the last one ended, right after a rejection, and not at a random position.
"""

from __future__ import annotations

from torch import Tensor

from training.losses import LossOutput

TREE_SIZES = (8, 16, 32, 64)
"""Nodes of the trees whose streak is logged, the root not counted."""


def metric_sums(output: LossOutput, group_A: Tensor, num_groups: int) -> Tensor:
    """Return float64 [num_groups, columns] of sums over the blocks of each group (domain, bucket, ...); negative groups are left
    out. Tensors of several micro-batches, steps and ranks add up; `describe` reads them."""
    raise NotImplementedError


def describe(sums: Tensor, block_size: int) -> dict[str, float]:
    """Return the figures of one row of sums by name: loss, accuracy, accuracy_slot_01.., streak, tau, top8_streak,
    tree8_streak.., and blocks; a figure that nothing was counted for is left out."""
    raise NotImplementedError

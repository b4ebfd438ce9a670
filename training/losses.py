"""What the drafter is trained to do, computed without ever holding all logits.

Every predicted slot has a label, the token that the target sampled there. The loss of a slot is hard cross-entropy, blended
with KL against the target's own distribution (`soft_kl`), plus optionally CAP (LLaDA 2.0, arXiv 2512.15745: the entropy of
slots that are already right). A slot's weight falls with its distance from the anchor, because a token counts only when all
before it were accepted: exp(-(s-1)/gamma) (DFlash), the running survival estimate, or D-PACE (arXiv 2605.18810).

Logits over a large vocabulary are what fills a GPU, so blocks pass in chunks: a chunk's logits give its loss, its metrics and
its gradient with respect to the hidden states at once, and are dropped. The backward pass only scales what was kept.

Letters: A anchors, K slots of a block, S = K - 1 predicted slots, H width, V vocabulary, R rows of a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

GAMMA_BY_BLOCK_SIZE = {16: 7.0, 10: 5.0, 8: 4.0}
"""DFlash, arXiv 2602.06036."""


class LossSettings(BaseModel):
    """What a slot is taught and how much it counts."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    soft_kl: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of KL(target || drafter) in the loss; the rest is cross-entropy on the sampled token."""
    temperature: float = Field(default=1.0, gt=0.0)
    """Both distributions are softened by it before the KL, whose gradient is scaled back by its square."""
    cap: float = Field(default=0.0, ge=0.0)
    """Weight of the entropy of slots predicted right. It sharpens chains and can hurt trees."""
    weighting: Literal["gamma", "survival", "dpace"] = "gamma"
    """How a slot's weight falls along the block."""
    gamma: float | None = Field(default=None, gt=0.0)
    """Decay length in slots of `gamma` weighting; None: 7 for blocks of 16, 5 for 10, 4 for 8, in between by interpolation."""
    survival_decay: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Per step, what the running estimate of P(streak >= s) keeps of its past, for `survival` weighting."""
    dpace_alpha: float = Field(default=0.5, ge=0.0, le=1.0)
    """D-PACE: how far a slot's probability is lifted towards 1 before they are multiplied along the block."""
    chunk_bytes: int = Field(default=1 << 27, ge=1)
    """Memory in bytes of one chunk's float32 logits."""


@dataclass(frozen=True)
class LossOutput:
    """The loss of a micro-batch as sums, so that ranks and accumulation steps add up, and what metrics are made of."""

    loss_sum: Tensor
    """float32 scalar with gradient, sum of weight x loss."""
    weight_sum: Tensor
    """float32 scalar, sum of weights."""
    loss_AS: Tensor
    """float32, unweighted loss of every slot, 0 where there is no label."""
    weight_AS: Tensor
    """float32, weight of every slot, 0 where there is no label."""
    label_mask_AS: Tensor
    """bool, slots that have a label."""
    correct_AS: Tensor
    """bool, the drafter's first choice is the label."""
    top8_AS: Tensor
    """bool, fewer than 8 tokens are more likely than the label."""
    tree_blocks: Tensor
    """int64 [M], numbers of the blocks whose most likely tokens were kept for trees."""
    tree_logprobs_MSC: Tensor
    """float32, log-probabilities of the C likeliest tokens of every slot of those blocks, descending."""
    tree_label_rank_MS: Tensor
    """int64, place of the label among them, C where it is not."""


def block_loss(
    hidden_AKH: Tensor,
    labels_AS: Tensor,
    label_mask_AS: Tensor,
    head_VH: Tensor,
    settings: LossSettings,
    target_final_ASH: Tensor | None = None,
    survival_S: Tensor | None = None,
    tree_blocks: int = 0,
) -> LossOutput:
    """Return the loss of all blocks. `head_VH` is frozen; the gradient reaches `hidden_AKH` alone.

    `target_final_ASH` (blocks.predicting_hidden) is needed for `soft_kl`, `survival_S` for `survival` weighting. The first
    `tree_blocks` valid blocks keep their likeliest tokens for metrics.tree_streaks.
    """
    raise NotImplementedError


def resolve_gamma(settings: LossSettings, block_size: int) -> float:
    """Return gamma for a block size, warning when the one asked for is far from what the field uses."""
    raise NotImplementedError


def initial_survival(block_size: int) -> Tensor:
    """Return float32 [S] of ones: the survival estimate before the first step. Part of a checkpoint."""
    return torch.ones(block_size - 1)


def update_survival(survival_S: Tensor, reached_S: Tensor, survived_S: Tensor, decay: float) -> Tensor:
    """Return the estimate of P(streak >= s) after a step in which, over all ranks, `survived_S` of `reached_S` labelled blocks had it."""
    raise NotImplementedError

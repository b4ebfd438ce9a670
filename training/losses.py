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

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from training.settings import LossSettings

__all__ = [
    "LossOutput",
    "LossSettings",
    "block_loss",
    "initial_survival",
    "resolve_gamma",
    "slot_weights",
    "update_survival",
]

TREE_CANDIDATES = 64
"""Likeliest tokens kept per slot: a best-first tree of k nodes never needs more than k of them."""

MIN_SURVIVAL = 0.01
"""Least weight of a slot under `survival` weighting, so that late slots go on learning."""


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

    `target_final_ASH` (blocks.predicting_hidden) is needed for `soft_kl`, `survival_S` for `survival` weighting. Blocks up to
    `tree_blocks` of them, evenly spread over the valid ones, keep their likeliest tokens for metrics.tree_streaks. Matrix
    products run in the dtype of `head_VH`, everything that is summed in float32.
    """
    assert settings.soft_kl == 0 or target_final_ASH is not None, "soft_kl needs the target's final hidden states"
    slot_weights_S = slot_weights(settings, hidden_AKH.shape[1], survival_S).to(hidden_AKH.device)
    loss_sum, loss_AS, weight_AS, correct_AS = _ChunkedLoss.apply(
        hidden_AKH, labels_AS, label_mask_AS, head_VH, settings, target_final_ASH, slot_weights_S
    )
    chosen = torch.nonzero(label_mask_AS[:, 0]).squeeze(1)
    num_chosen = min(tree_blocks, chosen.numel())
    chosen = chosen[torch.arange(num_chosen, device=chosen.device) * chosen.numel() // max(1, num_chosen)]
    logprobs_MSC, rank_MS = _likeliest(
        hidden_AKH.detach()[chosen, 1:], labels_AS[chosen], label_mask_AS[chosen], head_VH, settings
    )
    return LossOutput(
        loss_sum=loss_sum,
        weight_sum=weight_AS.sum(),
        loss_AS=loss_AS,
        weight_AS=weight_AS,
        label_mask_AS=label_mask_AS,
        correct_AS=correct_AS,
        tree_blocks=chosen,
        tree_logprobs_MSC=logprobs_MSC,
        tree_label_rank_MS=rank_MS,
    )


def slot_weights(settings: LossSettings, block_size: int, survival_S: Tensor | None = None) -> Tensor:
    """Return float32 [S], the weight of every slot; ones for D-PACE, whose weights depend on the block."""
    if settings.weighting == "dpace":
        return torch.ones(block_size - 1)
    if settings.weighting == "survival":
        assert survival_S is not None, "survival weighting needs the running estimate"
        return survival_S.clamp(min=MIN_SURVIVAL)
    return torch.exp(-torch.arange(block_size - 1) / resolve_gamma(settings, block_size))


def resolve_gamma(settings: LossSettings, block_size: int) -> float:
    """Return gamma for a block size (DFlash, arXiv 2602.06036: 4 for 8, 5 for 10, 7 for 16); warn where the one asked for is far off."""
    published = block_size / 2 if block_size <= 10 else 5 + (block_size - 10) / 3
    gamma = published if settings.gamma is None else settings.gamma
    if not 0.66 < gamma / published < 1.5:
        warnings.warn(
            f"loss.gamma is {gamma:g}, but blocks of {block_size} are trained with about {published:.3g}; "
            "leave loss.gamma out unless this is meant",
            stacklevel=2,
        )
    return gamma


def initial_survival(block_size: int) -> Tensor:
    """Return float32 [S] of ones: the survival estimate before the first step. Part of a checkpoint."""
    return torch.ones(block_size - 1)


def update_survival(survival_S: Tensor, labelled_S: Tensor, survived_S: Tensor, decay: float) -> Tensor:
    """Return the estimate of P(streak >= s) after a step in which, over all ranks, `survived_S` of `labelled_S` blocks with a
    label in slot s had such a streak (metrics.survival_counts). Slots without labels keep their estimate."""
    now_S = torch.where(labelled_S > 0, survived_S / labelled_S.clamp(min=1), survival_S)
    return (decay * survival_S + (1 - decay) * now_S).float()


class _ChunkedLoss(torch.autograd.Function):
    """Loss, metrics and the gradient of the hidden states, chunk by chunk, in one pass over the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_AKH: Tensor,
        labels_AS: Tensor,
        label_mask_AS: Tensor,
        head_VH: Tensor,
        settings: LossSettings,
        target_final_ASH: Tensor | None,
        slot_weights_S: Tensor,
    ) -> tuple[Tensor, ...]:
        num_blocks, num_slots = labels_AS.shape
        loss_AS = torch.zeros(num_blocks, num_slots, device=hidden_AKH.device)
        weight_AS, correct_AS = torch.zeros_like(loss_AS), torch.zeros_like(label_mask_AS)
        grad_AKH = torch.zeros_like(hidden_AKH) if ctx.needs_input_grad[0] else None
        step = _chunk_blocks(settings, num_slots, head_VH)
        scratch = _Scratch(step * num_slots, head_VH)
        for part, block_R, slot_R in _chunks(label_mask_AS, step):
            labels_R = labels_AS[block_R, slot_R]
            logits_RV = scratch.product(hidden_AKH[block_R, slot_R + 1], head_VH, "logits")
            final_RH = None if target_final_ASH is None else target_final_ASH[block_R, slot_R]
            rows = _rows_loss(logits_RV, labels_R, final_RH, head_VH, settings, scratch)
            loss_AS[block_R, slot_R], correct_AS[block_R, slot_R] = rows.loss_R, rows.correct_R
            weight_AS[part] = _block_weights(rows.cross_entropy_R, label_mask_AS[part], slot_weights_S, settings)
            if grad_AKH is not None:
                grad_RH = torch.mm(rows.grad_RV, head_VH).float() * weight_AS[block_R, slot_R, None]
                grad_AKH[block_R, slot_R + 1] = grad_RH.to(grad_AKH.dtype)
        ctx.save_for_backward(grad_AKH)
        ctx.mark_non_differentiable(loss_AS, weight_AS, correct_AS)
        return (weight_AS * loss_AS).sum(), loss_AS, weight_AS, correct_AS

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_AKH,) = ctx.saved_tensors
        return (grad_AKH * grads[0].to(grad_AKH.dtype), *[None] * 6)


def _chunks(label_mask_AS: Tensor, step: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield runs of `step` blocks that have labels: the run, and block and slot of every label in it."""
    for first in range(0, label_mask_AS.shape[0], step):
        part = slice(first, first + step)
        block_R, slot_R = torch.nonzero(label_mask_AS[part], as_tuple=True)
        if block_R.numel():
            yield part, block_R + first, slot_R


class _Scratch:
    """Buffers of [rows, V] used again by every chunk."""

    def __init__(self, rows: int, head_VH: Tensor) -> None:
        self.rows, self.like, self.buffers = rows, head_VH, dict[str, Tensor]()

    def take(self, name: str, rows: int) -> Tensor:
        """Return the first `rows` of the named buffer; what it held is overwritten."""
        if name not in self.buffers:
            self.buffers[name] = self.like.new_empty(self.rows, self.like.shape[0])
        return self.buffers[name][:rows]

    def product(self, hidden_RH: Tensor, head_VH: Tensor, name: str) -> Tensor:
        """Return logits [R, V] in the named buffer."""
        return torch.mm(hidden_RH.to(head_VH.dtype), head_VH.T, out=self.take(name, hidden_RH.shape[0]))


@dataclass(frozen=True)
class _Rows:
    loss_R: Tensor
    cross_entropy_R: Tensor
    correct_R: Tensor
    grad_RV: Tensor
    """Gradient of loss_R with respect to the logits, in their dtype."""


def _rows_loss(
    logits_RV: Tensor,
    labels_R: Tensor,
    final_RH: Tensor | None,
    head_VH: Tensor,
    settings: LossSettings,
    scratch: _Scratch,
) -> _Rows:
    """Return the loss of every row and its gradient."""
    rows = torch.arange(labels_R.numel(), device=labels_R.device)
    peak_R, choice_R = logits_RV.max(dim=-1)
    probs_RV = torch.softmax(logits_RV, dim=-1, out=scratch.take("probs", labels_R.numel()))
    # log sum exp through the largest probability, which cannot underflow as the label's can.
    log_total_R = peak_R.float() - probs_RV[rows, choice_R].float().log()
    cross_entropy_R = log_total_R - logits_RV[rows, labels_R].float()
    correct_R = choice_R == labels_R
    if settings.soft_kl == 0 and settings.cap == 0:
        probs_RV[rows, labels_R] -= 1
        return _Rows(cross_entropy_R, cross_entropy_R, correct_R, probs_RV)

    loss_R = (1 - settings.soft_kl) * cross_entropy_R
    grad_RV = probs_RV.float() * (1 - settings.soft_kl)
    grad_RV[rows, labels_R] -= 1 - settings.soft_kl
    if settings.soft_kl > 0:
        assert final_RH is not None
        target_RV = scratch.product(final_RH, head_VH, "target").float()
        kl_R, kl_grad_RV = _softened_kl(logits_RV.float(), target_RV, settings.temperature)
        loss_R = loss_R + settings.soft_kl * kl_R
        grad_RV += settings.soft_kl * kl_grad_RV
    if settings.cap > 0:
        logprobs_RV = logits_RV.float() - log_total_R[:, None]
        entropy_R = -(logprobs_RV.exp() * logprobs_RV).sum(dim=-1)
        weight_R = settings.cap * correct_R
        loss_R = loss_R + weight_R * entropy_R
        grad_RV -= weight_R[:, None] * logprobs_RV.exp() * (logprobs_RV + entropy_R[:, None])
    return _Rows(loss_R, cross_entropy_R, correct_R, grad_RV.to(logits_RV.dtype))


def _softened_kl(logits_RV: Tensor, target_RV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return T^2 KL(target || drafter) of both at temperature T, and its gradient with respect to the drafter's logits."""
    drafter = (logits_RV / temperature).log_softmax(dim=-1)
    target = (target_RV / temperature).log_softmax(dim=-1)
    kl_R = temperature**2 * (target.exp() * (target - drafter)).sum(dim=-1)
    return kl_R, temperature * (drafter.exp() - target.exp())


def _block_weights(
    cross_entropy_R: Tensor, label_mask_AS: Tensor, slot_weights_S: Tensor, settings: LossSettings
) -> Tensor:
    """Return the weights [A, S] of a chunk's slots, 0 where there is no label."""
    if settings.weighting != "dpace":
        return slot_weights_S * label_mask_AS
    lifted_AS = torch.zeros(label_mask_AS.shape, device=label_mask_AS.device)
    alpha = settings.dpace_alpha
    lifted_AS[label_mask_AS] = (1 - alpha) * torch.exp(-cross_entropy_R) + alpha
    # w_j = sum over m >= j of prod_{i <= m} q~_i: what the accepted length gains with log q_j.
    survival_AS = lifted_AS.cumprod(dim=1)
    return survival_AS.flip(1).cumsum(dim=1).flip(1) * label_mask_AS


def _chunk_blocks(settings: LossSettings, num_slots: int, head_VH: Tensor) -> int:
    return max(1, settings.chunk_bytes // (4 * num_slots * head_VH.shape[0]))


@torch.no_grad()
def _likeliest(
    hidden_MSH: Tensor, labels_MS: Tensor, label_mask_MS: Tensor, head_VH: Tensor, settings: LossSettings
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities [M, S, C] of the likeliest tokens of every slot, and the label's place among them."""
    num_blocks, num_slots = labels_MS.shape
    num_candidates = min(TREE_CANDIDATES, head_VH.shape[0])
    logprobs_MSC = torch.empty(num_blocks, num_slots, num_candidates, device=hidden_MSH.device)
    rank_MS = torch.empty_like(labels_MS)
    step = _chunk_blocks(settings, num_slots, head_VH)
    for first in range(0, num_blocks, step):
        part = slice(first, first + step)
        logits = torch.matmul(hidden_MSH[part].to(head_VH.dtype), head_VH.T).float()
        top = logits.topk(num_candidates, dim=-1)
        logprobs_MSC[part] = top.values - logits.logsumexp(dim=-1, keepdim=True)
        hit = (top.indices == labels_MS[part, :, None]) & label_mask_MS[part, :, None]
        rank_MS[part] = torch.where(hit.any(dim=-1), hit.int().argmax(dim=-1), num_candidates)
    return logprobs_MSC, rank_MS

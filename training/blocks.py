"""Blocks: which positions are drafted from, what each slot must predict, and what a block may see.

An anchor is a supervised token whose successor is supervised too. Its block is [anchor token, MASK x (K-1)] at the
anchor's position and the K-1 that follow; slot s (1 <= s < K) predicts the token s places after the anchor. Anchors are a
fixed budget per micro-batch, so that every step has one shape and one cost: documents share the budget in proportion to
their supervised length, none goes without, and within a document one anchor is drawn from each of equal stretches.

Letters: T packed tokens, A anchors, K slots of a block (the anchor's included), S = K - 1 predicted slots, H width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from training.batches import Batch


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Where the blocks of one micro-batch stand. Sorted by document, then by position; padding comes last."""

    block_size: int
    """K."""
    num_tokens: int
    """T, the length of the packed context."""
    anchor_A: Tensor
    """int64, index of the anchor in the packed tokens; 0 for padding."""
    valid_A: Tensor
    """bool, false for padding blocks."""
    document_A: Tensor
    """int64, document number; -1 for padding."""
    document_start_A: Tensor
    """int64, packed index of the document's first token. A block sees the tokens in [document_start, anchor)."""
    anchor_position_A: Tensor
    """int64, position of the anchor within its document."""
    context_position_T: Tensor
    """int64, position of every packed token within its document."""

    @property
    def num_blocks(self) -> int:
        """A."""
        return self.anchor_A.shape[0]

    @property
    def slot_position_AK(self) -> Tensor:
        """int64, position of every slot within its document."""
        return self.anchor_position_A[:, None] + torch.arange(self.block_size, device=self.anchor_A.device)


def eligible_anchors(batch: Batch) -> Tensor:
    """Return bool [T]: supervised, followed in the same document by a supervised token."""
    eligible_T = torch.zeros_like(batch.loss_mask_T)
    same_document = batch.document_T[:-1] == batch.document_T[1:]
    eligible_T[:-1] = batch.loss_mask_T[:-1] & batch.loss_mask_T[1:] & same_document & (batch.document_T[:-1] >= 0)
    return eligible_T


def sample_anchors(batch: Batch, budget: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return anchor_A (int64, ascending packed indices, padding 0 at the end) and valid_A (bool), A = `budget`.

    Documents share the budget in proportion to their eligible positions, at least one each while it lasts; inside a
    document the eligible positions, taken as a circle from a random start, are cut into as many equal stretches as it has
    anchors and one is drawn from each: all positions are equally likely, and none is drawn twice. `generator` lives on the CPU, so the draw does not depend on the device.
    """
    eligible = torch.nonzero(eligible_anchors(batch).cpu()).squeeze(1)
    _, per_document = torch.unique_consecutive(batch.document_T.cpu()[eligible], return_counts=True)
    shares = _share_budget(per_document, budget, generator)
    first = per_document.cumsum(0) - per_document

    stretch = torch.arange(int(shares.sum())) - torch.repeat_interleave(shares.cumsum(0) - shares, shares)
    length, count = torch.repeat_interleave(per_document, shares), torch.repeat_interleave(shares, shares)
    low, high = stretch * length // count, (stretch + 1) * length // count
    offset = low + (torch.rand(low.shape, generator=generator, dtype=torch.float64) * (high - low)).long()
    turn = (torch.rand(per_document.shape, generator=generator, dtype=torch.float64) * per_document).long()
    place = (offset + torch.repeat_interleave(turn, shares)) % length
    drawn = eligible[torch.repeat_interleave(first, shares) + place].sort().values

    anchor_A = torch.zeros(budget, dtype=torch.int64)
    anchor_A[: drawn.numel()] = drawn
    valid_A = torch.arange(budget) < drawn.numel()
    return anchor_A.to(batch.input_ids_T.device), valid_A.to(batch.input_ids_T.device)


def lay_out_blocks(batch: Batch, anchor_A: Tensor, valid_A: Tensor, block_size: int) -> BlockLayout:
    """Return the layout of blocks at the given anchors. `anchor_A` must ascend over the valid blocks, which come first."""
    position_A = batch.position_T[anchor_A]
    return BlockLayout(
        block_size=block_size,
        num_tokens=batch.input_ids_T.shape[0],
        anchor_A=anchor_A,
        valid_A=valid_A,
        document_A=torch.where(valid_A, batch.document_T[anchor_A], -1),
        document_start_A=anchor_A - position_A,
        anchor_position_A=position_A,
        context_position_T=batch.position_T,
    )


def block_token_ids(batch: Batch, layout: BlockLayout, mask_token_id: int) -> Tensor:
    """Return int64 [A, K]: the anchor's token, then the mask token."""
    ids_AK = torch.full((layout.num_blocks, layout.block_size), mask_token_id, device=layout.anchor_A.device)
    ids_AK[:, 0] = batch.input_ids_T[layout.anchor_A]
    return ids_AK


def block_labels(batch: Batch, layout: BlockLayout) -> tuple[Tensor, Tensor]:
    """Return labels_AS (int64) and label_mask_AS (bool), S = K - 1.

    A label counts while every token from the anchor's successor up to it is supervised and of the anchor's document: the
    mask is a cumulative product, so no label crosses a masked gap or the end of a document.
    """
    index_AS = _label_index(layout)
    inside_AS = index_AS < layout.num_tokens
    index_AS = index_AS.clamp(max=layout.num_tokens - 1)
    counts_AS = inside_AS & batch.loss_mask_T[index_AS] & (batch.document_T[index_AS] == layout.document_A[:, None])
    label_mask_AS = counts_AS.long().cumprod(dim=1).bool() & layout.valid_A[:, None]
    return batch.input_ids_T[index_AS], label_mask_AS


def predicting_hidden(layout: BlockLayout, final_TH: Tensor) -> Tensor:
    """Return [A, S, H]: for every slot, the target's final hidden state that predicts the slot's token (one place before)."""
    return final_TH[(_label_index(layout) - 1).clamp(max=layout.num_tokens - 1)]


def _label_index(layout: BlockLayout) -> Tensor:
    return layout.anchor_A[:, None] + torch.arange(1, layout.block_size, device=layout.anchor_A.device)


def _share_budget(per_document: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """Return int64 [documents]: anchors each gets, at most its eligible positions, in all at most `budget`."""
    if per_document.numel() > budget:
        chosen = torch.randperm(per_document.numel(), generator=generator)[:budget]
        return torch.zeros_like(per_document).index_fill_(0, chosen, 1)
    total = int(per_document.sum())
    if total <= budget:
        return per_document
    ideal = per_document.double() * budget / total
    shares = ideal.floor().long().clamp(min=1)
    # Largest remainders gain, or smallest lose, until the shares add up; a document keeps one anchor throughout.
    while (missing := budget - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        movable = shares < per_document if step > 0 else shares > 1
        gap = torch.where(movable, (ideal - shares) * step, -torch.inf)
        chosen = gap.topk(min(abs(missing), int(movable.sum()))).indices
        shares[chosen] += step
    return shares

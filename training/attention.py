"""Attention of blocks to their context and to themselves: one meaning, three ways to compute it.

A slot at position q of a block anchored at p sees the context tokens of its document at positions j < p, and its own
block's slots: all of them in a full layer; in a sliding layer of window W only tokens and slots at positions j with
q - W < j <= q, measured from the slot itself, as vLLM (`window_size = (W - 1, 0)`) and SGLang (`window_left = W - 1`)
measure it. `reference` is that sentence written as a dense mask, the other backends must equal it:
`structured` (CPU) never scores a pair that the mask would remove in bulk; `flex` (CUDA) compiles the mask into a kernel.

Letters: T packed tokens, A anchors, K slots of a block, Q query heads, G key and value heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from training.blocks import BlockLayout
from training.flex_attention import flex_block_attention
from training.structured_attention import structured_attention

Backend = Literal["auto", "reference", "structured", "flex"]


@dataclass(frozen=True)
class KeysValues:
    """Rotated keys and values, [..., G, D] each."""

    keys: Tensor
    values: Tensor


def block_attention(
    queries_AKQD: Tensor,
    context: KeysValues,
    own: KeysValues,
    layout: BlockLayout,
    window: int | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Return the attention output [A, K, Q, D], scores scaled by 1/sqrt(D).

    `context` holds [T, G, D], `own` [A, K, G, D]. `window` is a sliding layer's width in tokens, None for full attention.
    `auto` is structured on a CPU; on CUDA it is flex for many blocks and the dense reference for the one block of decoding,
    whose shape changes every round. Padding blocks see themselves only.

    Raises:
        ValueError: the backend does not run there.
    """
    on_gpu = queries_AKQD.is_cuda
    if backend == "auto":
        backend = "structured" if not on_gpu else "flex" if layout.num_blocks > 1 else "reference"
    tensors = (queries_AKQD, context.keys, context.values, own.keys, own.values)
    if backend == "reference":
        return _reference(queries_AKQD, context, own, layout, window)
    if backend == "structured":
        if on_gpu:
            raise ValueError("attention backend 'structured' runs on a CPU; on a GPU use 'flex', or leave it at 'auto'")
        return structured_attention(*tensors, layout, window)
    if not on_gpu and torch.is_grad_enabled() and queries_AKQD.requires_grad:
        raise ValueError(
            "attention backend 'flex' trains on a GPU only; on a CPU use 'structured', or leave it at 'auto'"
        )
    return flex_block_attention(*tensors, layout, window)


def visible(layout: BlockLayout, window: int | None) -> tuple[Tensor, Tensor]:
    """Return what every slot may see: bool [A, K, T] over the context and bool [A, K, K] over its own block."""
    index_T = torch.arange(layout.num_tokens, device=layout.anchor_A.device)
    before_AT = (index_T >= layout.document_start_A[:, None]) & (index_T < layout.anchor_A[:, None])
    context_AKT = (before_AT & layout.valid_A[:, None])[:, None].expand(-1, layout.block_size, -1)
    own_AKK = torch.ones(layout.block_size, layout.block_size, dtype=torch.bool, device=index_T.device)
    if window is not None:
        distance_AKT = layout.slot_position_AK[:, :, None] - layout.context_position_T
        context_AKT = context_AKT & (distance_AKT < window)
        own_AKK = own_AKK.tril() & ~own_AKK.tril(-window)
    return context_AKT, own_AKK.expand(layout.num_blocks, -1, -1)


def _reference(
    queries_AKQD: Tensor, context: KeysValues, own: KeysValues, layout: BlockLayout, window: int | None
) -> Tensor:
    num_blocks, num_slots, num_queries, width = queries_AKQD.shape
    num_groups = own.keys.shape[2]
    queries = queries_AKQD.unflatten(2, (num_groups, num_queries // num_groups))
    scores_context = torch.einsum("akgrd,tgd->akgrt", queries, context.keys)
    scores_own = torch.einsum("akgrd,ajgd->akgrj", queries, own.keys)
    context_AKT, own_AKK = visible(layout, window)
    seen = torch.cat([context_AKT, own_AKK], dim=-1)[:, :, None, None]
    scores = torch.cat([scores_context, scores_own], dim=-1) * width**-0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)
    mixed = torch.einsum("akgrt,tgd->akgrd", weights[..., : layout.num_tokens], context.values)
    mixed = mixed + torch.einsum("akgrj,ajgd->akgrd", weights[..., layout.num_tokens :], own.values)
    return mixed.flatten(2, 3)

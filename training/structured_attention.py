"""Block attention on a CPU: the pairs that the mask leaves, computed by PyTorch's flash kernel, and no dense mask.

The keys of a slot fall into two parts: its own block, and its document up to the anchor. Blocks that stand next to each other
share almost all of their context, so they are grouped: one kernel call for the context before the group's first anchor, where
nothing is masked, and one for the short stretch between its first and last anchor. Each call returns the log of its softmax
denominator, from which parts are merged exactly; handed the merged result, the kernel's backward yields the gradient of
each part (the identity that ring attention rests on, arXiv 2310.01889). Nothing of size slots x context is ever stored.

Letters: T packed tokens, A blocks, K slots, G key and value heads, R = K x query heads per key head, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from training.blocks import BlockLayout

GROUP_BLOCKS = 16
"""Most blocks of a group: enough rows for matrix products at full speed."""

GROUP_SPAN = 64
"""Most tokens between a group's first and last anchor; half of the scores over this stretch are computed in vain."""

NEVER = -1e30
"""Added to scores of masked pairs. Finite, so that a row with nothing to see has weight zero and not NaN."""


@dataclass(frozen=True)
class Span:
    """Blocks [first, last) against context tokens [start, stop)."""

    first: int
    last: int
    start: int
    stop: int
    seen_AKT: Tensor | None
    """bool over those blocks, their slots and those tokens; None where all is seen."""

    def mask(self, queries_per_key: int, dtype: torch.dtype) -> Tensor | None:
        """Return what the kernel adds to the scores, [1, 1, rows, tokens]."""
        if self.seen_AKT is None:
            return None
        added = torch.zeros(self.seen_AKT.shape, dtype=dtype).masked_fill_(~self.seen_AKT, NEVER)
        return added.repeat_interleave(queries_per_key, dim=1).flatten(0, 1)[None, None]


def structured_attention(
    queries_AKQD: Tensor,
    context_keys_TGD: Tensor,
    context_values_TGD: Tensor,
    own_keys_AKGD: Tensor,
    own_values_AKGD: Tensor,
    layout: BlockLayout,
    window: int | None,
) -> Tensor:
    """Return the attention output [A, K, Q, D] of CPU tensors; see attention.block_attention."""
    num_groups = own_keys_AKGD.shape[2]
    num_blocks, num_slots, num_queries, width = queries_AKQD.shape
    queries_AKGQD = queries_AKQD.unflatten(2, (num_groups, num_queries // num_groups))
    out_GARD = _StructuredAttention.apply(
        queries_AKGQD.permute(2, 0, 1, 3, 4).flatten(2, 3).contiguous(),
        context_keys_TGD.transpose(0, 1).contiguous(),
        context_values_TGD.transpose(0, 1).contiguous(),
        own_keys_AKGD.permute(2, 0, 1, 3).contiguous(),
        own_values_AKGD.permute(2, 0, 1, 3).contiguous(),
        layout,
        window,
    )
    out_GAKQD = out_GARD.unflatten(2, (num_slots, num_queries // num_groups))
    return out_GAKQD.permute(1, 2, 0, 3, 4).reshape(num_blocks, num_slots, num_queries, width)


@lru_cache(maxsize=8)
def plan_spans(layout: BlockLayout, window: int | None) -> tuple[Span, ...]:
    """Return the kernel calls that cover every visible pair of block and context once."""
    spans: list[Span] = []
    for first, last in _groups(layout):
        anchors = layout.anchor_A[first:last]
        low, high = int(anchors[0]), int(anchors[-1])
        start = int(layout.document_start_A[first])
        if window is not None:
            start = max(start, low - window + 1)
            _add_span(spans, layout, window, first, last, start, high)
        else:
            _add_span(spans, layout, None, first, last, start, low)
            _add_span(spans, layout, None, first, last, low, high)
    return tuple(spans)


def _groups(layout: BlockLayout) -> list[tuple[int, int]]:
    """Return runs [first, last) of blocks of one document whose anchors stand close together."""
    groups: list[tuple[int, int]] = []
    anchors, documents = layout.anchor_A.tolist(), layout.document_A.tolist()
    for block in range(int(layout.valid_A.sum())):
        first = groups[-1][0] if groups else 0
        near = groups and documents[block] == documents[first] and anchors[block] - anchors[first] <= GROUP_SPAN
        if near and block - first < GROUP_BLOCKS:
            groups[-1] = (first, block + 1)
        else:
            groups.append((block, block + 1))
    return groups


def _add_span(
    spans: list[Span], layout: BlockLayout, window: int | None, first: int, last: int, start: int, stop: int
) -> None:
    if start >= stop:
        return
    index = torch.arange(start, stop)
    seen_AKT = (index < layout.anchor_A[first:last, None])[:, None].expand(-1, layout.block_size, -1)
    if window is not None:
        seen_AKT = seen_AKT & (layout.slot_position_AK[first:last, :, None] - layout.context_position_T[index] < window)
    spans.append(Span(first, last, start, stop, None if bool(seen_AKT.all()) else seen_AKT))


class _StructuredAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries_GARD: Tensor,
        keys_GTD: Tensor,
        values_GTD: Tensor,
        own_keys_GAKD: Tensor,
        own_values_GAKD: Tensor,
        layout: BlockLayout,
        window: int | None,
    ) -> Tensor:
        num_groups, num_blocks, rows, width = queries_GARD.shape
        ctx.spans, ctx.queries_per_key = plan_spans(layout, window), rows // layout.block_size
        ctx.own_mask = _own_mask(layout.block_size, window, ctx.queries_per_key, queries_GARD.dtype)
        out, log_total = _flash(
            queries_GARD.transpose(0, 1), own_keys_GAKD.transpose(0, 1), own_values_GAKD.transpose(0, 1), ctx.own_mask
        )
        out_GARD, log_total_GAR = out.transpose(0, 1).contiguous(), log_total.transpose(0, 1).contiguous()
        for span in ctx.spans:
            blocks, tokens = slice(span.first, span.last), slice(span.start, span.stop)
            part, log_part = _flash(
                queries_GARD[:, blocks].flatten(1, 2)[None],
                keys_GTD[None, :, tokens],
                values_GTD[None, :, tokens],
                span.mask(ctx.queries_per_key, queries_GARD.dtype),
            )
            shape = (num_groups, span.last - span.first, rows)
            _merge(out_GARD[:, blocks], log_total_GAR[:, blocks], part.view(*shape, width), log_part.reshape(shape))
        ctx.save_for_backward(
            queries_GARD, keys_GTD, values_GTD, own_keys_GAKD, own_values_GAKD, out_GARD, log_total_GAR
        )
        return out_GARD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries_GARD, keys_GTD, values_GTD, own_keys, own_values, out_GARD, log_total_GAR = ctx.saved_tensors
        grad_out = grads[0].contiguous()
        own = _flash_backward(
            grad_out.transpose(0, 1),
            queries_GARD.transpose(0, 1),
            own_keys.transpose(0, 1),
            own_values.transpose(0, 1),
            out_GARD.transpose(0, 1),
            log_total_GAR.transpose(0, 1),
            ctx.own_mask,
        )
        grad_queries, grad_own_keys, grad_own_values = (x.transpose(0, 1).contiguous() for x in own)
        grad_keys, grad_values = torch.zeros_like(keys_GTD), torch.zeros_like(values_GTD)
        for span in ctx.spans:
            blocks, tokens = slice(span.first, span.last), slice(span.start, span.stop)
            from_queries, from_keys, from_values = _flash_backward(
                grad_out[:, blocks].flatten(1, 2)[None],
                queries_GARD[:, blocks].flatten(1, 2)[None],
                keys_GTD[None, :, tokens],
                values_GTD[None, :, tokens],
                out_GARD[:, blocks].flatten(1, 2)[None],
                log_total_GAR[:, blocks].flatten(1, 2)[None],
                span.mask(ctx.queries_per_key, queries_GARD.dtype),
            )
            grad_queries[:, blocks] += from_queries[0].view_as(grad_queries[:, blocks])
            grad_keys[:, tokens] += from_keys[0]
            grad_values[:, tokens] += from_values[0]
        return grad_queries, grad_keys, grad_values, grad_own_keys, grad_own_values, None, None


def _own_mask(block_size: int, window: int | None, queries_per_key: int, dtype: torch.dtype) -> Tensor | None:
    if window is None:
        return None
    causal = torch.ones(block_size, block_size, dtype=torch.bool).tril()
    seen_KK = causal & ~causal.tril(-window)
    added = torch.zeros(block_size, block_size, dtype=dtype).masked_fill_(~seen_KK, NEVER)
    return added.repeat_interleave(queries_per_key, dim=0)[None, None]


def _merge(out: Tensor, log_total: Tensor, part: Tensor, log_part: Tensor) -> None:
    """Merge one part's softmax average into `out`, in place, and its denominator into `log_total`."""
    share = torch.sigmoid(log_part - log_total)
    out.copy_(torch.lerp(out.to(share.dtype), part.to(share.dtype), share[..., None]))
    log_total.copy_(torch.logaddexp(log_total, log_part))


def _flash(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the average [batch, heads, rows, D] and the log denominators [batch, heads, rows], in float32 at least."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, False, attn_mask=mask)


def _flash_backward(
    grad_out: Tensor, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, log_total: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    # The kernel reads denominators in the memory order in which it wrote them: rows before heads.
    log_total = log_total.transpose(1, 2).contiguous().transpose(1, 2)
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, queries, keys, values, out, log_total, 0.0, False, attn_mask=mask
    )

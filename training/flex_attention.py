"""Block attention on a GPU: the mask compiled into one kernel that skips what it removes (torch flex attention).

Context and blocks are laid end to end as keys, [T context tokens, A x K slots]; queries are the slots. Shapes depend on the
packed length and the anchor budget only, so one compilation serves the training steps and one more, with sizes as variables,
everything else. The mask's table of blocks is compiled too: built eagerly it would pass through a dense [slots, keys] tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from training.blocks import BlockLayout


def flex_block_attention(
    queries_AKQD: Tensor,
    context_keys_TGD: Tensor,
    context_values_TGD: Tensor,
    own_keys_AKGD: Tensor,
    own_values_AKGD: Tensor,
    layout: BlockLayout,
    window: int | None,
) -> Tensor:
    """Return the attention output [A, K, Q, D]; see attention.block_attention. Compiled on CUDA, eager elsewhere."""
    keys = torch.cat([context_keys_TGD, own_keys_AKGD.flatten(0, 1)])
    values = torch.cat([context_values_TGD, own_values_AKGD.flatten(0, 1)])
    queries = queries_AKQD.flatten(0, 1)
    attend = _compiled(flex_attention) if queries.is_cuda else flex_attention
    out = attend(
        queries.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        block_mask=plan_mask(layout, window),
        enable_gqa=True,
    )
    return out[0].transpose(0, 1).reshape(queries_AKQD.shape)


@lru_cache(maxsize=8)
def plan_mask(layout: BlockLayout, window: int | None) -> BlockMask:
    """Return the mask of all slots over context and slots, shared by the layers of one window."""
    num_slots = layout.num_blocks * layout.block_size
    make = _compiled(create_block_mask) if layout.anchor_A.is_cuda else create_block_mask
    return make(
        _visible(layout, window), None, None, num_slots, layout.num_tokens + num_slots, device=layout.anchor_A.device
    )


def _visible(layout: BlockLayout, window: int | None) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    num_tokens, block_size = layout.num_tokens, layout.block_size
    anchor_A, start_A, position_A = layout.anchor_A, layout.document_start_A, layout.anchor_position_A
    context_position_T, last_token = layout.context_position_T, layout.num_tokens - 1

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        block, slot = query // block_size, query % block_size
        key_slot = key - num_tokens
        in_context = (key >= start_A[block]) & (key < anchor_A[block])
        in_block = (key_slot >= 0) & (key_slot // block_size == block)
        if window is not None:
            distance = position_A[block] + slot - context_position_T[key.clamp(max=last_token)]
            in_context = in_context & (distance < window)
            behind = slot - key_slot % block_size
            in_block = in_block & (behind >= 0) & (behind < window)
        return in_context | in_block

    return mask


@lru_cache(maxsize=2)
def _compiled(function: Any) -> Any:
    return torch.compile(function)

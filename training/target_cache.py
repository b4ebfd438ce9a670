"""What the target remembers of a text while it is decoded, and how that is taken back.

Keys and values of attention layers are cropped. The states of recurrent layers (linear attention) hold everything read so far and
cannot be: they are copied before tokens are read that may be rejected, and put back. `target.Target` reads and rolls back.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import (
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

RECURRENT_FLAGS = ("has_previous_state", "is_conv_states_initialized", "is_recurrent_states_initialized")
"""What transformers keeps beside the states of a recurrent layer, by state."""


class TargetCache:
    """What the target remembers of one text. `Target.extend` grows it, `Target.rollback` and `Target.keep` shrink it."""

    def __init__(self, config: Any) -> None:
        self.states = DynamicCache(config=config.get_text_config())
        self.length = 0
        self.recurrent = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in self.states.layers)
        self.sliding = any(self.states.is_sliding)
        if self.recurrent and self.sliding:
            raise ValueError("this target mixes recurrent and sliding-window layers, whose cache cannot be rolled back")
        self.saved: list[dict[str, Any]] = []
        """States of the recurrent layers before the last `extend`: they cannot be cropped, only restored and run again."""
        self.last_ids: Tensor | None = None
        """Tokens of the last `extend`."""
        if self.sliding:
            for layer in self.states.layers:
                if isinstance(layer, DynamicSlidingWindowLayer):
                    layer.activate_past_recording()


def tree_mask(length: int, ancestors_NN: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to the scores, [1, 1, N, length + N]: all of the text, and of the tree each token's ancestors."""
    past = torch.ones(ancestors_NN.shape[0], length, dtype=torch.bool, device=ancestors_NN.device)
    seen = torch.cat([past, ancestors_NN], dim=1)
    added = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return added.masked_fill_(~seen, torch.finfo(dtype).min)[None, None]


def save_states(layer: Any) -> dict[str, Any]:
    """Return copies of a recurrent layer's states, nothing of other layers."""
    if not isinstance(layer, LinearAttentionCacheLayerMixin):
        return {}
    copies = {
        name: {index: None if state is None else state.clone() for index, state in getattr(layer, name).items()}
        for name in ("conv_states", "recurrent_states")
    }
    flags = {name: dict(getattr(layer, name)) for name in RECURRENT_FLAGS}
    return copies | flags


def restore_states(layer: Any, saved: dict[str, Any], tokens_to_remove: int) -> None:
    """Put saved states back, and drop the last `tokens_to_remove` keys and values (a negative number, as transformers counts) of
    layers that have them."""
    for name, value in saved.items():
        setattr(layer, name, value)
    if isinstance(layer, DynamicLayer):
        DynamicLayer.crop(layer, tokens_to_remove)

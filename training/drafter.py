"""The DFlash drafter: a few transformer layers that fill a block of masked slots in one pass.

Hidden states of several target layers are concatenated, projected by `fc`, normalised, and serve as extra keys and values
in every layer; the slots of a block attend to them strictly before the anchor, and to each other. Token embedding and
lm_head are the target's and no part of this module. Parameter names are z-lab's (github.com/z-lab/dflash), so export is a
copy. Training runs all blocks of a packed micro-batch at once (`forward`); decoding keeps the context's keys and values
in a `ContextCache` (`extend`, `draft`).

Letters: T packed tokens, N new tokens, A anchors, K slots of a block, H width, F = features x width,
Q query heads, G key and value heads, D width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

from training.attention import Backend, KeysValues, block_attention
from training.blocks import BlockLayout
from training.drafter_config import DrafterConfig, DrafterSettings, default_target_layer_ids
from training.elementwise import Angles, RMSNorm, rotate, silu_times

__all__ = [
    "ContextCache",
    "DFlashDrafter",
    "DrafterConfig",
    "DrafterSettings",
    "default_target_layer_ids",
    "noise_width",
]

INIT_STD = 0.02
"""Standard deviation of fresh weights, transformers' default for Qwen3."""


@dataclass
class ContextCache:
    """Keys and values of one text's context in every drafter layer, while it is decoded."""

    layers: list[KeysValues]
    """One per layer, [length, G, D] each."""
    length: int = 0
    """Context tokens held."""

    def crop(self, length: int) -> None:
        """Forget all but the first `length` context tokens."""
        self.layers = [KeysValues(kv.keys[:length], kv.values[:length]) for kv in self.layers]
        self.length = min(self.length, length)


class DrafterAttention(nn.Module):
    """Attention of the slots to their context and to their own block, with normalised queries and keys (Qwen3)."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.head_dim, self.window = config.head_dim, config.window(layer)
        queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, angles: Angles) -> KeysValues:
        """Return keys and values [..., G, D] of hidden states [..., H] at the positions of `angles`."""
        keys = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        values = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        return KeysValues(rotate(self.k_norm(keys), angles), values)

    def forward(
        self, hidden_AKH: Tensor, context: KeysValues, layout: BlockLayout, slot_angles: Angles, backend: Backend
    ) -> Tensor:
        queries_AKQD = self.q_proj(hidden_AKH).unflatten(-1, (-1, self.head_dim))
        queries_AKQD = rotate(self.q_norm(queries_AKQD), slot_angles)
        own = self.keys_values(hidden_AKH, slot_angles)
        mixed_AKQD = block_attention(queries_AKQD, context, own, layout, self.window, backend)
        return self.o_proj(mixed_AKQD.flatten(-2))


class DrafterMLP(nn.Module):
    """Gated MLP (SwiGLU)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu_times(self.gate_proj(x), self.up_proj(x)))


class DrafterLayer(nn.Module):
    """One pre-norm transformer layer. The context is not normalised again: `hidden_norm` has done it once for all layers."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = DrafterAttention(config, layer)
        self.mlp = DrafterMLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_AKH: Tensor,
        context: Tensor | KeysValues,
        layout: BlockLayout,
        context_angles: Angles,
        slot_angles: Angles,
        backend: Backend,
    ) -> Tensor:
        """Return hidden [A, K, H]. `context` is the projected context [T, H], or its keys and values where they are cached."""
        if isinstance(context, Tensor):
            context = self.self_attn.keys_values(context, context_angles)
        hidden_AKH = hidden_AKH + self.self_attn(
            self.input_layernorm(hidden_AKH), context, layout, slot_angles, backend
        )
        return hidden_AKH + self.mlp(self.post_attention_layernorm(hidden_AKH))


class DFlashDrafter(nn.Module):
    """The drafter. `backend` chooses how attention is computed, `recompute_layers` trades a second forward for memory."""

    def __init__(self, config: DrafterConfig, backend: Backend = "auto", recompute_layers: bool = False) -> None:
        super().__init__()
        self.config, self.backend, self.recompute_layers = config, backend, recompute_layers
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = Qwen3RotaryEmbedding(_rotary_config(config))

    def init_weights(self, generator: torch.Generator | None = None) -> None:
        """Draw fresh weights; with a generator the draw is reproducible."""
        for name, parameter in self.named_parameters():
            if name.endswith("norm.weight"):
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, std=INIT_STD, generator=generator)

    def forward(
        self,
        context_TF: Tensor,
        block_embeds_AKH: Tensor,
        layout: BlockLayout,
        noise: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return hidden_AKH of all slots, final-normed: slot s times the target's lm_head gives the logits of token anchor+s.

        `noise` is the half-width of uniform noise added to the features as they enter `fc`, and to nothing else.
        """
        if noise > 0:
            spread = torch.empty_like(context_TF).uniform_(-noise, noise, generator=generator)
            context_TF = context_TF + spread
        context_TH = self.hidden_norm(self.fc(context_TF))
        return self._fill(block_embeds_AKH.to(context_TH.dtype), [context_TH] * len(self.layers), layout)

    def project_context(self, context_TF: Tensor, position_T: Tensor) -> list[KeysValues]:
        """Return every layer's keys and values [T, G, D] of the context, for several calls of `fill_blocks`."""
        context_TH = self.hidden_norm(self.fc(context_TF))
        angles = self.angles(position_T)
        layers = cast("list[DrafterLayer]", list(self.layers))
        return [layer.self_attn.keys_values(context_TH, angles) for layer in layers]

    def fill_blocks(self, context: list[KeysValues], block_embeds_AKH: Tensor, layout: BlockLayout) -> Tensor:
        """Return what `forward` returns, from a context projected before."""
        return self._fill(block_embeds_AKH.to(context[0].values.dtype), context, layout)

    def empty_cache(self) -> ContextCache:
        """Return a cache that holds no context."""
        shape = (0, self.config.num_key_value_heads, self.config.head_dim)
        nothing = self.fc.weight.new_empty(shape)
        return ContextCache([KeysValues(nothing, nothing) for _ in self.layers])

    def extend(self, cache: ContextCache, features_NF: Tensor) -> None:
        """Append the target's features of the next N tokens to the context of a text."""
        position_N = torch.arange(cache.length, cache.length + features_NF.shape[0], device=features_NF.device)
        added = self.project_context(features_NF, position_N)
        cache.layers = [
            KeysValues(
                torch.cat([old.keys.to(new.keys.dtype), new.keys]),
                torch.cat([old.values.to(new.values.dtype), new.values]),
            )
            for old, new in zip(cache.layers, added, strict=True)
        ]
        cache.length += features_NF.shape[0]

    def draft(self, cache: ContextCache, block_embeds_KH: Tensor) -> Tensor:
        """Return hidden_KH of one block anchored at position `cache.length`: all context is before the anchor."""
        device = block_embeds_KH.device
        anchor_A = torch.tensor([cache.length], device=device)
        layout = BlockLayout(
            block_size=block_embeds_KH.shape[0],
            num_tokens=cache.length,
            anchor_A=anchor_A,
            valid_A=torch.ones(1, dtype=torch.bool, device=device),
            document_A=torch.zeros_like(anchor_A),
            document_start_A=torch.zeros_like(anchor_A),
            anchor_position_A=anchor_A,
            context_position_T=torch.arange(cache.length, device=device),
        )
        return self.fill_blocks(cache.layers, block_embeds_KH[None], layout)[0]

    def angles(self, positions: Tensor) -> Angles:
        """Return the rotary angles of positions [...]."""
        like = torch.empty(0, dtype=torch.float32, device=positions.device)
        cos, sin = self.rotary(like, positions)
        half = cos.shape[-1] // 2
        return Angles(cos[..., None, :half], sin[..., None, :half])

    def _fill(self, hidden_AKH: Tensor, context: list[Tensor] | list[KeysValues], layout: BlockLayout) -> Tensor:
        context_angles, slot_angles = self.angles(layout.context_position_T), self.angles(layout.slot_position_AK)
        for layer, seen in zip(self.layers, context, strict=True):
            arguments = (hidden_AKH, seen, layout, context_angles, slot_angles, self.backend)
            if self.recompute_layers and torch.is_grad_enabled():
                hidden_AKH = checkpoint(layer, *arguments, use_reentrant=False)
            else:
                hidden_AKH = layer(*arguments)
        return self.norm(hidden_AKH)


def noise_width(settings: DrafterSettings, step: int, total_steps: int) -> float:
    """Return the half-width of the feature noise at a step (0-based): a ramp from zero, then `feature_noise`."""
    warmup = settings.feature_noise_warmup_frac * total_steps
    return settings.feature_noise * min(1.0, step / warmup) if warmup > 0 else settings.feature_noise


def _rotary_config(config: DrafterConfig) -> Qwen3Config:
    return Qwen3Config(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters=dict(config.rope_parameters),
    )

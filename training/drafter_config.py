"""The shape of a drafter: what a recipe may choose, what z-lab's `config.json` says, and the rules that tie it to its target.

Most drafters that come out useless do so here, silently: a feature taken from the target's last layer, a mask token that
occurs in text, a vocabulary of another model. So a configuration is checked against the target before anything is allocated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from training.settings import Settings

FULL, SLIDING = "full_attention", "sliding_attention"
LayerType = Literal["full_attention", "sliding_attention"]

ROPE_TYPES = frozenset({"default", "linear", "yarn", "llama3"})
"""Rotary variants whose angles depend on the position alone, so that cached keys stay right as a text grows."""


class DrafterSettings(Settings):
    """What a recipe chooses about the drafter; everything left out follows the target."""

    num_layers: int = Field(default=5, ge=1)
    """Transformer layers of the drafter."""
    block_size: int = Field(default=16, ge=2, le=64)
    """Slots of a block, the anchor's included; the drafter proposes block_size - 1 tokens a round."""
    num_features: int = Field(default=5, ge=1)
    """Target layers whose hidden states the drafter sees, spread evenly from the second to the third-last."""
    target_layer_ids: tuple[int, ...] | None = None
    """Those layers by number, 0-based, instead of the even spread. The last layer is refused."""
    mask_token_id: int | None = Field(default=None, ge=0)
    """Token that stands for "to be predicted"; must not occur in text. None: a reserved token of the target's tokenizer."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Width of the MLP; None: the target's."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Query heads; None: the target's."""
    num_key_value_heads: int | None = Field(default=None, ge=1)
    """Key and value heads; None: the target's."""
    head_dim: int | None = Field(default=None, ge=2)
    """Width of a head; None: the target's."""
    layer_types: tuple[LayerType, ...] | None = None
    """One per layer; None: all full attention. In sliding layers a slot sees earlier slots only."""
    sliding_window: int | None = Field(default=None, ge=1)
    """Tokens a slot of a sliding layer sees, itself included."""
    feature_noise: float = Field(default=0.0, ge=0.0)
    """Half-width of the uniform noise on what enters `fc`, in training only; the field uses 0.05."""
    feature_noise_warmup_frac: float = Field(default=0.1, ge=0.0, le=1.0)
    """Share of the run over which the noise grows from zero to its full width."""


class DrafterConfig(Settings):
    """Everything needed to build a drafter; the content of z-lab's `config.json`."""

    hidden_size: int
    """H, the target's width."""
    intermediate_size: int
    """Width of the MLP."""
    num_hidden_layers: int
    """Layers of the drafter."""
    num_attention_heads: int
    """Query heads."""
    num_key_value_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head."""
    vocab_size: int
    """Rows of the target's embedding."""
    num_target_layers: int
    """Layers of the target."""
    target_layer_ids: tuple[int, ...]
    """Target layers that feed `fc`, 0-based: layer j is `hidden_states[j + 1]` of transformers."""
    mask_token_id: int
    """Token in the slots to be predicted."""
    block_size: int
    """Slots of a block, the anchor's included."""
    layer_types: tuple[LayerType, ...]
    """One per drafter layer."""
    sliding_window: int | None = None
    """Tokens a slot of a sliding layer sees, itself included."""
    rms_norm_eps: float = 1e-6
    """Added to the mean square in every normalisation."""
    rope_parameters: dict[str, Any] = Field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    """Rotary embedding, as transformers describes it."""
    max_position_embeddings: int = 32768
    """Longest text in tokens that the target takes."""
    dtype: str = "bfloat16"
    """What engines load the weights as."""

    @model_validator(mode="after")
    def _check(self) -> DrafterConfig:
        check_target_layer_ids(self.target_layer_ids, self.num_target_layers)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads "
                f"{self.num_key_value_heads}; set both under `drafter`"
            )
        if len(self.layer_types) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types names {len(self.layer_types)} layers, the drafter has {self.num_hidden_layers}; give one per layer"
            )
        if SLIDING in self.layer_types and self.sliding_window is None:
            raise ValueError("layer_types has sliding_attention but sliding_window is unset; give its width in tokens")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"mask_token_id {self.mask_token_id} is outside the target's vocabulary of {self.vocab_size}; "
                "set drafter.mask_token_id to a token that never occurs in text"
            )
        if self.rope_parameters.get("rope_type", "default") not in ROPE_TYPES:
            raise ValueError(
                f"rope_type {self.rope_parameters['rope_type']!r} is not supported: its angles change as a text grows; "
                f"use one of {', '.join(sorted(ROPE_TYPES))}"
            )
        return self

    def window(self, layer: int) -> int | None:
        """Return the sliding window of a layer in tokens, None where attention is full."""
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def to_json(self) -> dict[str, Any]:
        """Return the object that z-lab's `config.json` holds."""
        sliding = SLIDING in self.layer_types
        return {
            "architectures": ["DFlashDraftModel"],
            "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "block_size": self.block_size,
            "dflash_config": {"mask_token_id": self.mask_token_id, "target_layer_ids": list(self.target_layer_ids)},
            "dtype": self.dtype,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "layer_types": list(self.layer_types),
            "max_position_embeddings": self.max_position_embeddings,
            # Qwen3Config drops the window unless told to use it, and by default uses it from this layer on.
            "max_window_layers": 0 if sliding else self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "num_target_layers": self.num_target_layers,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": self.rope_parameters,
            "rope_theta": self.rope_parameters["rope_theta"],
            "sliding_window": self.sliding_window if sliding else None,
            "tie_word_embeddings": False,
            "use_cache": True,
            "use_sliding_window": sliding,
            "vocab_size": self.vocab_size,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> DrafterConfig:
        """Return the configuration that a z-lab `config.json` describes.

        Raises:
            ValueError: a field is missing, or it asks for a variant that this drafter does not compute.
        """
        dflash = found.get("dflash_config") or {}
        _refuse_variants(found, dflash)
        rope = dict(found.get("rope_parameters") or found.get("rope_scaling") or {})
        rope.setdefault("rope_type", rope.pop("type", "default"))
        rope.setdefault("rope_theta", found.get("rope_theta", 10000.0))
        num_layers = found.get("num_hidden_layers", 0)
        fields = {
            **{name: found[name] for name in cls.model_fields if name in found},
            "block_size": found.get("block_size", dflash.get("block_size")),
            "dtype": found.get("dtype") or found.get("torch_dtype") or "bfloat16",
            "layer_types": found.get("layer_types") or [FULL] * num_layers,
            "mask_token_id": dflash.get("mask_token_id"),
            "rope_parameters": rope,
            "target_layer_ids": dflash.get("target_layer_ids"),
        }
        try:
            return cls(**fields)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'config'}: {e['msg']}" for e in error.errors())
            raise ValueError(f"not a DFlash config.json: {wrong}") from error

    @classmethod
    def load(cls, folder: Path) -> DrafterConfig:
        """Return the configuration in `folder/config.json`."""
        path = folder / "config.json"
        if not path.is_file():
            raise ValueError(f"no config.json in {folder}; a drafter's folder holds config.json and model.safetensors")
        return cls.from_json(json.loads(path.read_text()))


@dataclass(frozen=True)
class TargetFacts:
    """What a drafter must know of its target; read from the target's configuration, before any weight is loaded."""

    hidden_size: int
    num_layers: int
    vocab_size: int
    """Rows of the embedding, padding rows included."""
    intermediate_size: int | None
    """Width of the dense MLP; None for a target that has experts only."""
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_parameters: dict[str, Any]
    max_position_embeddings: int


def configure(settings: DrafterSettings, target: TargetFacts, mask_token_id: int) -> DrafterConfig:
    """Return the drafter's configuration: what the settings say, the target's own shape where they are silent.

    Raises:
        ValueError: the two do not fit; says what to set.
    """
    intermediate_size = settings.intermediate_size or target.intermediate_size
    if intermediate_size is None:
        raise ValueError(
            "the target has no dense MLP whose width the drafter could take; set drafter.intermediate_size"
        )
    layer_ids = settings.target_layer_ids or default_target_layer_ids(target.num_layers, settings.num_features)
    return DrafterConfig(
        hidden_size=target.hidden_size,
        intermediate_size=intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_attention_heads or target.num_attention_heads,
        num_key_value_heads=settings.num_key_value_heads or target.num_key_value_heads,
        head_dim=settings.head_dim or target.head_dim,
        vocab_size=target.vocab_size,
        num_target_layers=target.num_layers,
        target_layer_ids=layer_ids,
        mask_token_id=mask_token_id if settings.mask_token_id is None else settings.mask_token_id,
        block_size=settings.block_size,
        layer_types=settings.layer_types or (FULL,) * settings.num_layers,
        sliding_window=settings.sliding_window,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=target.rope_parameters,
        max_position_embeddings=target.max_position_embeddings,
    )


def default_target_layer_ids(num_target_layers: int, num_features: int) -> tuple[int, ...]:
    """Return `num_features` layer numbers spread evenly from layer 1 to layer L-3 (one: the middle), as z-lab does."""
    if num_features == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_features - 1)
    ids = tuple(round(1 + i * step) for i in range(num_features))
    if len(set(ids)) < num_features or num_target_layers < 4:
        raise ValueError(
            f"{num_features} features do not fit a target of {num_target_layers} layers; "
            f"set drafter.num_features to at most {max(1, num_target_layers - 3)}, or name drafter.target_layer_ids"
        )
    return ids


def check_target_layer_ids(layer_ids: tuple[int, ...], num_target_layers: int) -> None:
    """Raise ValueError unless the layers exist, ascend, and leave out the last one."""
    if not layer_ids or list(layer_ids) != sorted(set(layer_ids)):
        raise ValueError(f"target_layer_ids {list(layer_ids)} must be ascending layer numbers without repeats")
    if not 0 <= layer_ids[0] or layer_ids[-1] >= num_target_layers:
        raise ValueError(
            f"target_layer_ids {list(layer_ids)} must lie in 0..{num_target_layers - 2} for {num_target_layers} layers"
        )
    if layer_ids[-1] == num_target_layers - 1:
        raise ValueError(
            f"target_layer_ids {list(layer_ids)} has the target's last layer, which makes its logits: the drafter would learn "
            f"to read them off and know nothing when decoding; choose layers up to {num_target_layers - 2}"
        )


NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention_bias": (None, False),
    "attention_sink_bias": (None, False),
    "final_logit_softcapping": (None, 0.0),
    "input_embedding_scale": (None, 1.0),
    "output_multiplier": (None, 1.0),
}
"""Fields of published drafters of other kinds, with the values under which they change nothing."""


def _refuse_variants(found: dict[str, Any], dflash: dict[str, Any]) -> None:
    asked = [name for name in dflash if name.startswith(("conv_", "selector_", "markov_")) and dflash[name]]
    asked += [name for name, same in NEUTRAL.items() if dflash.get(name, found.get(name)) not in same]
    layer_types = found.get("layer_types") or [FULL]
    causal = dflash.get("causal", found.get("is_causal"))
    if causal is not None and any(bool(causal) != (kind == SLIDING) for kind in layer_types):
        asked.append("causal against the layer types")
    if dflash.get("use_swa") and SLIDING not in layer_types:
        asked.append("use_swa without layer_types")
    if asked:
        raise ValueError(f"this drafter's config.json asks for {', '.join(asked)}, which is not DFlash as trained here")

"""The speculators layout of a drafter (github.com/vllm-project/speculators), read and written.

The weights have z-lab's names; embedding and lm_head are left out, as speculators itself does for drafters of the whole
vocabulary, and come from the verifier. Three conventions differ from z-lab's and fail silently where they are mixed up:

- layers: `aux_hidden_state_layer_ids` count the embedding, so they are z-lab's ids plus one;
- anchor: `sample_from_anchor` false means that slot 0 holds the newest token and the block proposes block_size - 1 tokens;
- causality: `sliding_window_non_causal` says how sliding layers look inside a block. vLLM reads it for every layer, takes true
  where it is absent, and overrides the layer types with it. So it is left out for full attention, false where all
  layers slide, and a mix of both cannot be said in this layout.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from training.drafter_config import FULL, SLIDING, DrafterConfig

SPECULATORS_TYPE = "speculators_model_type"
"""The field by which a config.json is known to be of this layout."""

SPECULATORS_VERSION = "0.9.0"
"""Version of speculators whose layout is written."""

VERIFIERS = ("embed_tokens.", "lm_head.", "verifier_lm_head.", "verifier_norm.")
"""Prefixes of weights that are the verifier's and no part of the drafter."""


def config_to_speculators(config: DrafterConfig, target: str, target_architectures: list[str]) -> dict[str, Any]:
    """Return the object that config.json holds in this layout; `target` is where engines find the verifier.

    Raises:
        ValueError: the drafter mixes full and sliding layers.
    """
    kinds = set(config.layer_types)
    if kinds == {FULL, SLIDING}:
        raise ValueError(
            "this drafter mixes full and sliding layers, and the speculators layout has one causality for all; "
            "export it with --layout zlab"
        )
    layer = {
        name: value
        for name, value in config.to_json().items()
        if name not in ("architectures", "auto_map", "block_size", "dflash_config")
    }
    return {
        "architectures": ["DFlashSpeculator"],
        "aux_hidden_state_layer_ids": [layer_id + 1 for layer_id in config.target_layer_ids],
        "block_size": config.block_size,
        "draft_vocab_size": config.vocab_size,
        "dtype": config.dtype,
        "mask_token_id": config.mask_token_id,
        "sample_from_anchor": False,
        **({"sliding_window_non_causal": False} if kinds == {SLIDING} else {}),
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.block_size - 1}],
            "verifier": {"name_or_path": target, "architectures": target_architectures},
        },
        SPECULATORS_TYPE: "dflash",
        "speculators_version": SPECULATORS_VERSION,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
    }


def verifier_of(found: dict[str, Any]) -> str | None:
    """Return where a configuration of this layout says that its verifier is."""
    return ((found.get("speculators_config") or {}).get("verifier") or {}).get("name_or_path")


def config_from_speculators(found: dict[str, Any], num_target_layers: int | None = None) -> DrafterConfig:
    """Return the configuration that a config.json of this layout describes.

    Args:
        found: its content.
        num_target_layers: layers of the verifier, where the file does not say (only ours do).

    Raises:
        ValueError: it describes another kind of drafter, or one that is not computed here.
    """
    layer = dict(found.get("transformer_layer_config") or {})
    sliding = SLIDING in (layer.get("layer_types") or [])
    asked = []
    if found[SPECULATORS_TYPE] != "dflash":
        asked.append(f"{SPECULATORS_TYPE} {found[SPECULATORS_TYPE]!r}")
    if found.get("sample_from_anchor"):
        asked.append("sample_from_anchor (slot 0 proposes a token)")
    if sliding and found.get("sliding_window_non_causal", False):
        asked.append("sliding_window_non_causal with sliding layers")
    if found.get("draft_vocab_size") not in (None, layer.get("vocab_size")):
        asked.append(f"a vocabulary of its own ({found['draft_vocab_size']} tokens)")
    if asked:
        raise ValueError(
            f"this speculators config.json asks for {', '.join(asked)}, which is not DFlash as trained here"
        )
    layers = layer.get("num_target_layers", num_target_layers)
    if layers is None:
        raise ValueError("this speculators config.json does not say how many layers its verifier has; give --target")
    dflash = {
        "mask_token_id": found.get("mask_token_id"),
        "target_layer_ids": [layer_id - 1 for layer_id in found.get("aux_hidden_state_layer_ids") or []],
    }
    return DrafterConfig.from_json(
        layer | {"block_size": found.get("block_size"), "num_target_layers": layers, "dflash_config": dflash}
    )


def weights_from_speculators(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the drafter's own weights among those of a file in this layout."""
    return {name: weight for name, weight in weights.items() if not name.startswith(VERIFIERS)}

"""What a run needs of a GPU's memory, worked out before any of it is allocated.

Exact where sizes are known (weights, masters, gradients, moments, features), an upper estimate where they depend on kernels
(activations); the printed plan says which is which. Models are counted on torch's meta device, which holds shapes only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoConfig

from training.distributed import num_target_ranks
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.flops import measure_target
from training.job import Prepared
from training.recipe import Recipe

GIB = 2**30

FRAMEWORK_BYTES = int(1.5 * GIB)
"""CUDA context, library workspaces and communication buffers of one process."""

FRAGMENTATION_FRAC = 0.05
"""Part of what is allocated that the caching allocator cannot hand out."""


@dataclass(frozen=True)
class Item:
    """One entry of a memory budget."""

    name: str
    bytes: int
    exact: bool = True


@dataclass(frozen=True)
class Sizes:
    """What the budget of a rank depends on, apart from the recipe."""

    target_parameters: int
    vocab_size: int
    hidden_size: int
    target_intermediate_size: int
    drafter_parameters: int
    num_drafters: int
    dtype_bytes: int
    """Of the target and of the drafter's matrix products."""


def drafter_rank_items(recipe: Recipe, config: DrafterConfig, sizes: Sizes) -> list[Item]:
    """Return what a rank that trains holds at its peak, the backward pass of a micro-batch."""
    sharded = recipe.placement.shard == "fsdp" and sizes.num_drafters > 1
    share = sizes.num_drafters if sharded else 1
    parameters, width = sizes.drafter_parameters, sizes.dtype_bytes
    split = num_target_ranks(recipe.placement) > 0
    embeddings = 2 * sizes.vocab_size * sizes.hidden_size * width
    held = Item("target's embedding and lm_head", embeddings) if split else _target_weights(sizes)
    items = [
        held,
        Item("drafter: float32 masters", 4 * parameters // share),
        Item("drafter: AdamW moments", 8 * parameters // share),
        Item("drafter: gradients", 4 * parameters // share),
        *([Item("drafter: average of weights", 4 * parameters // share)] if recipe.optimizer.ema_decay else []),
        Item("drafter: weights and gradients gathered for a step" if sharded else "drafter: weights cast for products",
             (2 if sharded else 1) * width * parameters if width < 4 or sharded else 0),
        Item("target features of a micro-batch", _feature_bytes(recipe, config, sizes) * (2 if split else 1)),
        Item("drafter activations", _drafter_activation_bytes(recipe, config, sizes), exact=False),
        Item("loss: a chunk of logits, its gradient and copies", _loss_bytes(recipe, config, sizes), exact=False),
    ]  # fmt: skip
    if not split:
        items.append(Item("target activations", _target_activation_bytes(recipe, sizes), exact=False))
    return items


def target_rank_items(recipe: Recipe, config: DrafterConfig, sizes: Sizes) -> list[Item]:
    """Return what a rank that only runs the target holds at its peak."""
    return [
        _target_weights(sizes),
        Item("target features under way", 3 * _feature_bytes(recipe, config, sizes)),
        Item("target activations", _target_activation_bytes(recipe, sizes), exact=False),
    ]


def total_bytes(items: list[Item], on_gpu: bool) -> int:
    """Return the sum of a budget, with what a GPU process holds besides."""
    allocated = sum(item.bytes for item in items)
    return int(allocated * (1 + FRAGMENTATION_FRAC)) + FRAMEWORK_BYTES if on_gpu else allocated


def measure_sizes(prepared: Prepared, num_drafters: int, dtype_bytes: int) -> Sizes:
    """Return the sizes of a job, its models counted on the meta device."""
    with torch.device("meta"):
        drafter = DFlashDrafter(prepared.config)
    return Sizes(
        target_parameters=measure_target(prepared.target, prepared.job.trust_remote_code).parameters,
        vocab_size=prepared.facts.vocab_size,
        hidden_size=prepared.facts.hidden_size,
        target_intermediate_size=prepared.facts.intermediate_size or 4 * prepared.facts.hidden_size,
        drafter_parameters=sum(parameter.numel() for parameter in drafter.parameters()),
        num_drafters=num_drafters,
        dtype_bytes=dtype_bytes,
    )


def stored_dtype_bytes(target: str) -> int | None:
    """Return the width of the dtype that a target's configuration says its weights are stored in, None where it says none."""
    dtype = getattr(AutoConfig.from_pretrained(target).get_text_config(), "dtype", None)
    return dtype.itemsize if isinstance(dtype, torch.dtype) else None


def largest_micro_batch(recipe: Recipe) -> int:
    """Return the tokens that a micro-batch may hold: its budget, and part of a row that could not be split."""
    return recipe.batches.tokens + recipe.batches.max_length // 4


def _target_weights(sizes: Sizes) -> Item:
    return Item("target weights", sizes.target_parameters * sizes.dtype_bytes)


def _feature_bytes(recipe: Recipe, config: DrafterConfig, sizes: Sizes) -> int:
    width = (len(config.target_layer_ids) + 1) * sizes.hidden_size
    return largest_micro_batch(recipe) * width * sizes.dtype_bytes


def _target_activation_bytes(recipe: Recipe, sizes: Sizes) -> int:
    """Inference keeps one layer's activations: the residual stream, its norms in float32, attention, and the MLP's three."""
    per_token = sizes.dtype_bytes * (8 * sizes.hidden_size + 3 * sizes.target_intermediate_size) + 8 * sizes.hidden_size
    return largest_micro_batch(recipe) * per_token


def _drafter_activation_bytes(recipe: Recipe, config: DrafterConfig, sizes: Sizes) -> int:
    """What the backward pass needs: per slot and layer the inputs of every product, norms in float32, and the MLP's three."""
    slots, tokens = recipe.blocks.anchors * config.block_size, largest_micro_batch(recipe)
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    width = sizes.dtype_bytes
    per_slot = width * (4 * config.hidden_size + 3 * queries + 3 * keys + 3 * config.intermediate_size)
    per_slot += 4 * (2 * config.hidden_size + 2 * queries + keys)
    per_context_token = width * 3 * keys + 4 * keys
    layers = config.num_hidden_layers
    if recipe.compute.recompute_layers:
        kept = layers * width * slots * config.hidden_size
        return kept + slots * per_slot + tokens * per_context_token
    return layers * (slots * per_slot + tokens * per_context_token)


def _loss_bytes(recipe: Recipe, config: DrafterConfig, sizes: Sizes) -> int:
    """Logits, probabilities and their gradient of a chunk in float32 (the target's as well with soft KL), and hidden states
    with their gradient for all slots."""
    copies = 6 if recipe.loss.soft_kl > 0 else 3
    slots = recipe.blocks.anchors * config.block_size
    least_chunk = 4 * (config.block_size - 1) * sizes.vocab_size
    return copies * max(recipe.loss.chunk_bytes, least_chunk) + slots * config.hidden_size * (4 + sizes.dtype_bytes)

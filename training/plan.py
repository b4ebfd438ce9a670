"""The plan that `train --dry-run` prints: what would be trained on what, and the memory that every rank needs."""

from __future__ import annotations

import torch

from training.budget import (
    GIB,
    Item,
    Sizes,
    drafter_rank_items,
    measure_sizes,
    stored_dtype_bytes,
    target_rank_items,
    total_bytes,
)
from training.distributed import num_target_ranks
from training.job import Prepared

ASSUMED_GPU_GIB = 96
"""Memory per GPU that a plan is held against where none is visible."""


def describe_plan(prepared: Prepared, world: int) -> str:
    """Return the plan of a job on `world` processes, as text for a person."""
    recipe, placement = prepared.job.recipe, prepared.job.recipe.placement
    num_targets = num_target_ranks(placement)
    on_gpu = torch.cuda.is_available() or placement.processes is not None and placement.processes > 1
    half = recipe.compute.dtype == "bfloat16" or (recipe.compute.dtype == "auto" and on_gpu)
    sizes = measure_sizes(prepared, world - num_targets, 2 if half else 4)
    memory = _memory_per_gpu() if on_gpu else None
    lines = [*_what(prepared, world, sizes.drafter_parameters, sizes.target_parameters), ""]
    if num_targets:
        lines += _table(
            f"each of {num_targets} target ranks", target_rank_items(recipe, prepared.config, sizes), memory
        )
    drafters = world - num_targets
    title = f"each of {drafters} drafter ranks" if world > 1 else "this process"
    lines += _table(title, drafter_rank_items(recipe, prepared.config, sizes), memory)
    if on_gpu:
        lines.append(_host_memory(prepared, sizes, num_targets or drafters))
    return "\n".join(lines)


def _what(prepared: Prepared, world: int, drafter_parameters: int, target_parameters: int) -> list[str]:
    recipe, config, order = prepared.job.recipe, prepared.config, prepared.order
    counts = prepared.store.counts
    slots = recipe.blocks.anchors * config.block_size
    buckets = ", ".join(f"{low}-{high}" for low, high in order.bucket_lengths)
    return [
        f"set       {prepared.job.data}: {len(prepared.store):,} rows, {int(prepared.store.lengths.sum()):,} tokens "
        f"({counts['truncated']:,} rows cut to {recipe.batches.max_length}, {counts['no_anchor']:,} left out)",
        f"target    {prepared.target}: {target_parameters / 1e9:.2f} B parameters, vocabulary {prepared.facts.vocab_size:,}",
        f"drafter   {config.num_hidden_layers} layers, block {config.block_size}, features of target layers "
        f"{list(config.target_layer_ids)}: {drafter_parameters / 1e9:.3f} B parameters",
        f"batches   {recipe.batches.per_step} micro-batches a step of up to {recipe.batches.tokens:,} tokens and "
        f"{recipe.blocks.anchors} anchors ({slots:,} slots); length buckets {buckets}",
        f"run       {prepared.total_steps:,} steps, {order.batches_per_epoch:,} micro-batches an epoch, on {world} "
        f"process{'es' if world > 1 else ''} ({recipe.placement.mode}, {recipe.placement.shard})",
    ]


def _host_memory(prepared: Prepared, sizes: Sizes, holders: int) -> str:
    """Say what loading the target takes of the host's memory: safetensors in the dtype they are used in are mapped, not read."""
    size_gib = sizes.target_parameters * sizes.dtype_bytes / GIB
    stored = stored_dtype_bytes(prepared.target)
    if stored in (None, sizes.dtype_bytes):
        return f"host memory: {size_gib:.1f} GiB of weights are mapped while they load, once for all ranks of a machine"
    return (
        f"host memory: the weights are stored in another dtype, so each of {holders} ranks converts them while it loads: up to "
        f"{size_gib:.1f} GiB a rank; save the target in the dtype of compute.dtype to map them once for all"
    )


def _table(title: str, items: list[Item], memory_gib: float | None) -> list[str]:
    lines = [f"memory of {title}, in GiB (~ estimated)"]
    lines += [f"  {item.bytes / GIB:8.2f} {' ' if item.exact else '~'} {item.name}" for item in items if item.bytes]
    total = total_bytes(items, memory_gib is not None) / GIB
    besides = ", with the framework's own and 5% for fragmentation" if memory_gib is not None else ""
    lines.append(f"  {total:8.2f}   in all{besides}")
    if memory_gib is not None:
        left = memory_gib - total
        verdict = f"{left:.1f} GiB to spare" if left >= 0 else f"{-left:.1f} GiB TOO MUCH: {_REMEDY}"
        lines.append(f"  of {memory_gib:.0f} GiB per GPU: {verdict}")
    return lines


_REMEDY = "try placement.shard fsdp, compute.recompute_layers, fewer batches.tokens or blocks.anchors, or placement.mode split"


def _memory_per_gpu() -> float:
    """Return GiB of the smallest visible GPU, or what is assumed where none is visible."""
    if not torch.cuda.is_available():
        return ASSUMED_GPU_GIB
    return min(torch.cuda.get_device_properties(n).total_memory for n in range(torch.cuda.device_count())) / GIB

"""The memory budget: exact where it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from training.budget import GIB, Sizes, drafter_rank_items, measure_sizes, target_rank_items, total_bytes
from training.distributed import Ranks
from training.job import Job, prepare
from training.plan import describe_plan
from training.recipe import PlacementSettings, Recipe
from training.recipe import load as load_recipe
from training.state import begin

MakeJob = Callable[..., Job]


def named(items: list, name: str) -> int:  # type: ignore[type-arg]  # of Item
    return sum(item.bytes for item in items if name in item.name)


def test_weights_masters_and_moments_are_counted_to_the_byte(make_job: MakeJob) -> None:
    prepared = prepare(make_job(optimizer__ema_decay=0.9))
    import torch

    state = begin(prepared, Ranks(), torch.float32)
    parameters = sum(p.numel() for p in state.drafter.parameters())
    sizes = measure_sizes(prepared, num_drafters=1, dtype_bytes=4)
    items = drafter_rank_items(prepared.job.recipe, prepared.config, sizes)
    assert sizes.drafter_parameters == parameters
    assert named(items, "masters") == sum(p.numel() * p.element_size() for p in state.drafter.parameters())
    assert state.ema is not None
    assert named(items, "average") == sum(t.numel() * t.element_size() for t in state.ema.values())
    weights = Path(prepared.target) / "model.safetensors"
    header = 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    assert named(items, "target weights") == weights.stat().st_size - header


def test_sharding_divides_masters_and_moments_by_the_ranks(make_job: MakeJob) -> None:
    prepared = prepare(make_job())
    sizes = measure_sizes(prepared, num_drafters=4, dtype_bytes=2)
    whole = drafter_rank_items(prepared.job.recipe, prepared.config, sizes)
    recipe = prepared.job.recipe.model_copy(update={"placement": PlacementSettings(shard="fsdp")})
    shard = drafter_rank_items(recipe, prepared.config, sizes)
    for name in ("masters", "moments"):
        assert named(shard, name) == named(whole, name) // 4


def test_the_eight_gpu_recipe_fits_96_gib_in_both_placements(make_job: MakeJob) -> None:
    recipe = load_recipe("dflash_qwen3.6_27b_8gpu.yaml")
    config = prepare(make_job()).config.model_copy(
        update={
            "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 5, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 248320, "target_layer_ids": (1, 16, 31, 46, 61),
            "block_size": 16,
        }
    )  # fmt: skip
    sizes = Sizes(
        target_parameters=26_900_000_000,
        vocab_size=248320,
        hidden_size=5120,
        target_intermediate_size=17408,
        drafter_parameters=1_730_000_000,
        num_drafters=8,
        dtype_bytes=2,
    )
    colocated = total_bytes(drafter_rank_items(recipe, config, sizes), on_gpu=True)
    assert 60 * GIB < colocated < 96 * GIB
    split = Recipe.model_validate(
        recipe.model_dump() | {"placement": {"mode": "split", "target_ranks": 4, "shard": "fsdp"}}
    )
    assert total_bytes(target_rank_items(split, config, sizes), on_gpu=True) < 96 * GIB
    assert total_bytes(drafter_rank_items(split, config, replace(sizes, num_drafters=4)), on_gpu=True) < colocated


def test_the_plan_says_what_does_not_fit_and_what_to_try(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.plan.ASSUMED_GPU_GIB", 1)
    prepared = prepare(make_job(placement={"processes": 2}))
    plan = describe_plan(prepared, world=2)
    assert "TOO MUCH" in plan and "placement.shard fsdp" in plan
    assert json.dumps(prepared.card)

"""The memory budget: exact where it says so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from training.budget import (
    GIB,
    Sizes,
    drafter_rank_items,
    measure_sizes,
    stored_dtype_bytes,
    target_rank_items,
    total_bytes,
)
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
    assert "each of 2 ranks converts them" in plan
    assert json.dumps(prepared.card)


def test_weights_in_the_dtype_they_are_used_in_are_mapped_and_not_copied(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, vocab_size=64
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    assert size > 90e6 and stored_dtype_bytes(str(tmp_path)) == 2
    child = [sys.executable, "-c", ANONYMOUS_BYTES_OF_LOADING, str(tmp_path)]
    mapped, converted = (
        int(subprocess.run([*child, dtype], capture_output=True, text=True, check=True).stdout)
        for dtype in ("bfloat16", "float32")
    )
    assert mapped < size / 4
    assert converted > 1.5 * size


ANONYMOUS_BYTES_OF_LOADING = """
import sys
import torch
from training.target import Target

def anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))

tiny = torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
before = anonymous()
target = Target.load(sys.argv[1], getattr(torch, sys.argv[2]))
sum(float(parameter.sum()) for parameter in target.model.parameters())
print(anonymous() - before)
"""

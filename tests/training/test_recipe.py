"""Recipes: strict, layered, and the shipped ones valid."""

from __future__ import annotations

from pathlib import Path

import pytest

from training import recipe as recipes
from training.cli import read_train_options


@pytest.mark.parametrize("path", sorted(recipes.SHIPPED.glob("d*.yaml")), ids=lambda path: path.name)
def test_shipped_recipes_are_valid_and_found_by_bare_name(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipes.load(path.name) == recipes.load(path)


def test_the_eight_gpu_recipe_is_the_published_one() -> None:
    recipe = recipes.load("dflash_qwen3.6_27b_8gpu.yaml")
    assert (recipe.drafter.num_layers, recipe.drafter.block_size, recipe.blocks.anchors) == (5, 16, 512)
    optimizer = recipe.optimizer
    assert (optimizer.learning_rate, optimizer.betas, optimizer.warmup_frac, optimizer.clip_norm) == (
        6e-4,
        (0.9, 0.95),
        0.04,
        1.0,
    )
    assert recipe.epochs == 6


def test_defaults_give_way_to_the_file_and_the_file_to_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("batches: {tokens: 4096, per_step: 3}\nseed: 9\n")
    options = read_train_options(["--data", "d", "--recipe", str(file), "--batches.per-step", "5"])
    assert (options.settings.batches.tokens, options.settings.batches.per_step, options.settings.seed) == (4096, 5, 9)
    assert options.settings.batches.max_length == 3072


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimiser: {}", "optimiser: Extra inputs are not permitted"),
        ("batches: {tokens: 4}", "batches.tokens: Input should be greater than or equal to 16"),
        ("batches: {tokens: 64, max_length: 65}", "max_length 65 exceeds tokens 64"),
        ("- a", "expected sections such as `drafter`"),
        ("a: [", "not YAML"),
    ],
)
@pytest.mark.hostile
def test_a_wrong_recipe_is_one_line_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message.replace("(", r"\(")) as raised:
        recipes.load(file)
    assert "\n" not in str(raised.value)


def test_an_unknown_recipe_names_those_there_are() -> None:
    with pytest.raises(ValueError, match="demo.yaml"):
        recipes.load("demos.yaml")


def test_differences_name_every_field() -> None:
    assert recipes.differences({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "d": 3}) == ["a.c: 2 -> 4"]

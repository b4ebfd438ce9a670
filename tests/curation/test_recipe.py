"""The recipe: defaults, a file over them, the command line over both, and nothing misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from curation import recipe
from curation.recipe import Recipe

SHIPPED = sorted(recipe.SHIPPED.glob("build_*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_recipe_loads_by_its_bare_name_and_changes_something(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert recipe.load(Path(path.name), {}) != Recipe()


def test_the_command_line_goes_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("num_shards: 7\nseed: 3\ntokenization: {max_seq_len: 100}\n")
    loaded = recipe.load(path, {"seed": 4, "tokenization.too_long": "drop"})
    assert (loaded.num_shards, loaded.seed) == (7, 4)
    assert (loaded.tokenization.max_seq_len, loaded.tokenization.too_long) == (100, "drop")
    assert loaded.dedupe == Recipe().dedupe


def test_a_recipe_survives_the_json_that_a_set_carries() -> None:
    made = recipe.load(None, {"domains": {"code": 1.0}, "reading.digits": "mask"})
    assert Recipe.model_validate_json(made.model_dump_json()) == made


def test_assignments_are_yaml() -> None:
    parsed = recipe.parse_assignments(
        ("dedupe.threshold=0.7", "filters.languages=[de, en]", "tokenization.max_seq_len=null")
    )
    assert parsed == {"dedupe.threshold": 0.7, "filters.languages": ["de", "en"], "tokenization.max_seq_len": None}


def test_shares_are_names_and_numbers() -> None:
    assert recipe.parse_shares("code=20, math=30.5,*=1") == {"code": 20.0, "math": 30.5, "*": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "expected a mapping of settings, found list"),
        ("a: {", "not YAML"),
        ("num_shards: 0", "num_shards: Input should be greater than or equal to 1"),
        ("domains: {code: -1}", "`domains` are shares"),
        ("reading: {sign: completion}", "`reading.sign` must be prompt"),
        ("heldout: {frack: 1}", "heldout.frack: Extra inputs"),
        ("dedupe: {bands: 2, rows_per_band: 30}", "bands of 30 rows find"),
    ],
)
def test_a_bad_recipe_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=".*") as caught:
        recipe.load(path, {})
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_inside_a_plain_value_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("seed: 1\n")
    with pytest.raises(ValueError, match="seed is not a group of settings"):
        recipe.load(path, {"seed.inner": 2})

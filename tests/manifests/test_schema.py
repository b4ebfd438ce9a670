"""Manifests are read strictly, and what is wrong with one is said on one line that names the place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from manifests.schema import Manifest, Sampling, SamplingOverride, json_schema, load

SOURCE: dict[str, Any] = {"name": "a", "files": "a.jsonl", "domain": "chat", "license": "MIT", "count": 3}


def _written(tmp_path: Path, **changes: Any) -> Path:
    """Write a good manifest with some fields changed (None removes one), and return its path."""
    document = {"name": "mix", "target": {"model": "m"}, "sources": [SOURCE], **changes}
    path = tmp_path / "mix.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return path


def _complaint(path: Path | str) -> str:
    with pytest.raises(ValueError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_small_manifest_loads_with_one_default_per_field(tmp_path: Path) -> None:
    manifest, found = load(_written(tmp_path))
    assert found == (tmp_path / "mix.yaml").resolve()
    assert manifest.shard_rows == 500
    assert manifest.sampling == Sampling()
    assert manifest.sources[0].turns == "first"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sauces": 1}, "sauces: Extra inputs are not permitted"),
        ({"target": {"model": "m", "dype": "auto"}}, "target.dype: Extra inputs are not permitted"),
        ({"sources": [SOURCE, {**SOURCE, "name": "b", "wait": 2}]}, "sources.1.wait: Extra inputs are not permitted"),
        ({"target": None}, "target: Field required"),
        ({"sources": []}, "sources: "),
        ({"sampling": {"top_p": 1.5}}, "sampling.top_p: Input should be less than or equal to 1"),
        ({"sources": [{**SOURCE, "domain": "Tool Use"}]}, "sources.0.domain: String should match pattern"),
        ({"sources": [{**SOURCE, "format": "parquet"}]}, "sources.0.format: Input should be 'auto', 'messages'"),
    ],
)
def test_a_field_that_is_unknown_missing_or_out_of_range_is_named_with_its_path(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = _written(tmp_path, **changes)
    assert _complaint(path).startswith(f"{path}: {says}")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"hub": {"repo": "o/n"}}, "source 'a': give exactly one of `hub` and `files`"),
        ({"files": None}, "source 'a': give exactly one of `hub` and `files`"),
        ({"weight": 1.0}, "source 'a': give exactly one of `weight` and `count`"),
        ({"count": None}, "source 'a': give exactly one of `weight` and `count`"),
        ({"format": "prompt"}, "source 'a': `format: prompt` needs `column`"),
        ({"thinking": 1.5}, "source 'a': `thinking` is true, false or a fraction in [0, 1]"),
    ],
)
def test_a_source_that_contradicts_itself_is_named(tmp_path: Path, source: dict[str, Any], says: str) -> None:
    assert says in _complaint(_written(tmp_path, sources=[{**SOURCE, **source}]))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sources": [SOURCE, SOURCE]}, "source names must be unique; repeated: a"),
        ({"sources": [{**SOURCE, "count": None, "weight": 1}]}, "with a `weight` (a) need `total` or `total_tokens`"),
        ({"total": 5, "total_tokens": 5}, "give `total` (prompts) or `total_tokens`, not both"),
        ({"domains": {"chat": -1, "code": 2}}, "`domains` are shares: none negative, and not all zero"),
        ({"domains": {"chat": 0}}, "`domains` are shares: none negative, and not all zero"),
        ({"licenses": ["Apache-2.0"]}, "licences outside `licenses`: a (MIT); allow them or drop the sources"),
    ],
)
def test_parts_that_do_not_go_together_are_named(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    assert says in _complaint(_written(tmp_path, **changes))


def test_many_problems_are_said_on_one_line_and_the_rest_are_counted(tmp_path: Path) -> None:
    complaint = _complaint(_written(tmp_path, one=1, two=2, three=3, four=4, five=5))
    assert complaint.count("Extra inputs") == 3
    assert complaint.endswith("(and 2 more)")


def test_a_manifest_that_is_nowhere_is_answered_with_the_names_of_the_shipped_ones(tmp_path: Path) -> None:
    complaint = _complaint(tmp_path / "nowhere.yaml")
    assert complaint.startswith(f"no manifest '{tmp_path}/nowhere.yaml' here or among the shipped ones (")
    assert "nemotron_mix.yaml" in complaint


def test_a_folder_is_not_a_manifest(tmp_path: Path) -> None:
    assert "no manifest" in _complaint(tmp_path)


def test_a_local_file_goes_before_a_shipped_one_of_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = _written(tmp_path).rename(tmp_path / "demo_mix.yaml")
    monkeypatch.chdir(tmp_path)
    assert load("demo_mix.yaml")[1] == local.resolve()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"name: [unclosed", "not YAML: while parsing a flow sequence"),
        (b"name: \xff\xfe", "not YAML: 'utf-8' codec can't decode"),
        (b"", "expected a mapping with `target` and `sources`, found NoneType"),
        (b"- a\n- b\n", "expected a mapping with `target` and `sources`, found list"),
        (b"!!python/object/apply:os.getcwd []", "not YAML: could not determine a constructor"),
    ],
)
@pytest.mark.hostile
def test_a_file_that_is_no_manifest_at_all_gets_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "mix.yaml"
    path.write_bytes(content)
    assert _complaint(path).startswith(f"{path}: {says}")


def test_a_source_overrides_only_the_sampling_that_it_names() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=100)
    assert SamplingOverride(max_tokens=7).over(sampling) == Sampling(temperature=0.7, top_p=0.9, max_tokens=7)
    assert SamplingOverride(temperature=0).over(sampling).temperature == 0
    assert SamplingOverride().over(sampling) == sampling


def test_a_manifest_survives_being_stored_as_json(tmp_path: Path) -> None:
    manifest, _ = load(_written(tmp_path, sources=[{**SOURCE, "thinking": 0.3, "sampling": {"stop": ["\n\n"]}}]))
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest


def test_the_json_schema_describes_every_field_and_forbids_others() -> None:
    schema = json.loads(json.dumps(json_schema()))
    models = [schema, *schema["$defs"].values()]
    assert all(model["additionalProperties"] is False for model in models)
    assert all(field.get("description") for model in models for field in model["properties"].values())

"""The mixes that ship: they load from anywhere, are pinned, mean what they say, and the demo's prompts are worth asking."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from manifests.schema import SHIPPED, Manifest, load

MIXES = sorted(file.name for file in SHIPPED.glob("*.yaml"))
BALANCED = ["nemotron_mix.yaml", "balanced_pilot_mix.yaml"]


@pytest.mark.parametrize("name", MIXES)
def test_a_shipped_mix_is_found_by_its_bare_name_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    manifest, found = load(name)
    assert found == SHIPPED / name
    assert f"{manifest.name}.yaml" == name
    assert manifest.description


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_has_a_target_share_for_every_domain_that_it_asks_about(name: str) -> None:
    manifest, _ = load(name)
    assert {source.domain for source in manifest.sources} == set(manifest.domains)


@pytest.mark.parametrize("name", MIXES)
def test_hub_repositories_are_pinned_to_full_commits_and_the_gated_one_is_marked(name: str) -> None:
    manifest, _ = load(name)
    places = [source.hub for source in manifest.sources if source.hub]
    assert all(re.fullmatch(r"[0-9a-f]{40}", place.revision or "") for place in places)
    assert {place.repo for place in places if place.gated} <= {"nvidia/Nemotron-Post-Training-Dataset-v2"}
    assert all(place.gated for place in places if place.repo == "nvidia/Nemotron-Post-Training-Dataset-v2")
    if places:
        assert re.fullmatch(r"[0-9a-f]{40}", manifest.target.revision or "")


@pytest.mark.parametrize("name", MIXES)
def test_licences_are_listed_and_none_is_listed_in_vain(name: str) -> None:
    manifest, _ = load(name)
    assert set(manifest.licenses) == {source.license for source in manifest.sources}


@pytest.mark.parametrize("name", MIXES)
def test_thinking_is_stated_for_a_target_that_can_think(name: str) -> None:
    manifest, _ = load(name)
    if "Qwen3" in manifest.target.model:
        assert manifest.target.chat_template_kwargs["enable_thinking"] is False


@pytest.mark.parametrize("name", BALANCED)
def test_the_weights_of_a_balanced_mix_are_its_domain_shares(name: str) -> None:
    manifest, _ = load(name)
    assert _weight_shares(manifest) == pytest.approx(_normalised(manifest.domains))


@pytest.mark.parametrize("name", BALANCED)
def test_no_cap_of_a_balanced_mix_cuts_the_share_that_its_weight_gives(name: str) -> None:
    manifest, _ = load(name)
    whole = sum(source.weight or 0 for source in manifest.sources)
    for source in manifest.sources:
        assert source.weight is not None and manifest.total is not None
        assert source.cap is None or manifest.total * source.weight / whole <= source.cap, source.name


def test_the_demo_asks_400_prompts_in_eight_domains_and_77_percent_are_code() -> None:
    manifest, _ = load("demo_mix.yaml")
    rows = Counter({source.domain: len(_rows(source.files)) for source in manifest.sources})
    assert rows.total() == 400
    assert rows["code"] / rows.total() == 0.77
    assert len(rows) == 8
    assert min(rows.values()) >= 12
    assert {source.domain: source.count for source in manifest.sources} == rows


def test_the_demo_prompts_are_conversations_of_one_user_turn() -> None:
    for row in _demo_rows():
        (message,) = row["messages"]
        assert message["role"] == "user"
        assert 10 <= len(message["content"]) <= 400
        assert message["content"] == message["content"].strip()


def test_the_demo_has_tools_where_it_asks_about_tools_and_languages_where_it_asks_in_them() -> None:
    for row in _rows("demo_prompts/tool_use.jsonl"):
        assert row["tools"]
        for tool in row["tools"]:
            assert tool["type"] == "function"
            assert set(tool["function"]) == {"name", "description", "parameters"}
            assert set(tool["function"]["parameters"]["required"]) <= set(tool["function"]["parameters"]["properties"])
    languages = Counter(row["language"] for row in _rows("demo_prompts/multilingual.jsonl"))
    assert languages == {language: 2 for language in ("de", "es", "fr", "it", "ja", "pt")}


def test_no_two_demo_prompts_are_near_duplicates() -> None:
    shingles = {row["messages"][0]["content"]: _shingles(row["messages"][0]["content"]) for row in _demo_rows()}
    assert len(shingles) == 400
    worst = max(combinations(shingles, 2), key=lambda pair: _jaccard(shingles[pair[0]], shingles[pair[1]]))
    assert _jaccard(shingles[worst[0]], shingles[worst[1]]) < 0.5, worst


def _weight_shares(manifest: Manifest) -> dict[str, float]:
    weights = dict.fromkeys(manifest.domains, 0.0)
    for source in manifest.sources:
        weights[source.domain] += source.weight or 0
    return _normalised(weights)


def _normalised(shares: dict[str, float]) -> dict[str, float]:
    return {name: share / sum(shares.values()) for name, share in shares.items()}


def _rows(files: str | tuple[str, ...] | None) -> list[dict]:
    assert isinstance(files, str)
    return [json.loads(line) for line in (SHIPPED / files).read_text(encoding="utf-8").splitlines()]


def _demo_rows() -> list[dict]:
    manifest, _ = load("demo_mix.yaml")
    return [row for source in manifest.sources for row in _rows(source.files)]


def _shingles(text: str) -> set[str]:
    """Return the character 5-grams of the words of a text, which Japanese has as well."""
    text = " ".join(re.findall(r"\w+", text.lower()))
    return {text[at : at + 5] for at in range(max(1, len(text) - 4))}


def _jaccard(a: set[str], b: set[str]) -> float:
    return len(a & b) / len(a | b)

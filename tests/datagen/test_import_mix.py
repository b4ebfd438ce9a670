"""Published mixes become manifests, and what they lack or what is lost is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from datagen.import_mix import Mix, read_mix
from datagen.plan_commands import ImportMixCommand, import_mix
from manifests.schema import Manifest, load


def _read(tmp_path: Path, document: Any, name: str = "some mix.yaml") -> tuple[Manifest, Mix]:
    path = tmp_path / name
    path.write_text(json.dumps(document) if name.endswith(".json") else yaml.safe_dump(document, sort_keys=False))
    mix = read_mix(path, target="o/target", total=1000, uncapped=500)
    return Manifest.model_validate(mix.manifest), mix


def _noted(mix: Mix, words: str) -> bool:
    return any(words in note for note in mix.notes)


def test_data_sets_with_caps_become_one_source_per_split(tmp_path: Path) -> None:
    datasets = [
        {"repo_id": "o/Math-v2", "splits": ["high", "low"], "cap_per_split": 40, "augment": True},
        {"repo_id": "o/SFT-Multilingual-v1", "splits": ["code_de"], "cap_per_split": None, "augment": False},
    ]
    manifest, mix = _read(tmp_path, {"datasets": datasets})
    assert manifest.name == "some_mix"
    assert manifest.target.model == "o/target"
    assert [(source.name, source.domain, source.count) for source in manifest.sources] == [
        ("Math-v2-high", "math", 40),
        ("Math-v2-low", "math", 40),
        ("SFT-Multilingual-v1-code_de", "multilingual", 500),
    ]
    assert manifest.sources[0].hub is not None
    assert (manifest.sources[0].hub.repo, manifest.sources[0].hub.split) == ("o/Math-v2", "high")
    assert _noted(mix, "augmented copies (`augment` on 1 data sets)")
    assert _noted(mix, "1 splits are taken whole there, and up to 500 prompts each here: o/SFT-Multilingual-v1 code_de")


def test_a_blend_keeps_ratios_over_its_splits(tmp_path: Path) -> None:
    sources = [
        {"hf_path": "o/swe", "split": "r2e", "ratio": 300, "category": "Code Gen"},
        {"hf_path": "o/v2", "split": "code, math", "ratio": 200, "category": "mixed"},
        {"hf_path": "o/v2", "split": {"stem": 3, "math": 1}, "ratio": 100, "category": "mixed"},
        {"hf_path": "o/news", "dataset_kwargs": {"name": "3.0"}, "apply_chat_template": False},
        {
            "hf_path": "o/magpie",
            "dataset_kwargs": {"name": "mt", "columns": []},
            "chat_key": "conversations",
            "ratio": 50,
        },
        {"hf_path": "/data/saved", "ratio": 1},
    ]
    manifest, mix = _read(tmp_path, {"blend_size": 20_000, "splits": {"train": 0.9, "eval": 0.1}, "sources": sources})
    assert manifest.total == 20_000
    assert [(source.name, source.weight, source.domain) for source in manifest.sources] == [
        ("swe-r2e", 300, "code_gen"),
        ("v2-code", 100, "mixed"),
        ("v2-math", 100, "mixed"),
        ("v2-stem", 75, "mixed"),
        ("v2-math-2", 25, "mixed"),
        ("magpie-mt", 50, "chat"),
    ]
    assert manifest.sources[-1].column == "conversations"
    assert all(
        _noted(mix, words)
        for words in ("o/news: plain text", "/data/saved: a folder", "dataset_kwargs columns", "train, eval and test")
    )


def test_a_token_blend_keeps_its_weights_and_budget(tmp_path: Path) -> None:
    sources = [
        {"hf_dataset": "o/sft", "config": "math", "split": "train", "content_field": "messages", "weight": 21.1},
        {"hf_dataset": "o/sft", "config": "chat", "split": "train", "content_field": "turns", "weight": 56.2},
    ]
    manifest, mix = _read(tmp_path, {"tokenizer": "<t>", "target_tokens": 17_300_000, "sources": sources})
    assert manifest.total_tokens == 17_300_000
    assert [(source.name, source.weight, source.column) for source in manifest.sources] == [
        ("sft-math", 21.1, None),
        ("sft-chat", 56.2, "turns"),
    ]
    assert _noted(mix, "`target_tokens` counts prompts too")


def test_named_sources_are_carried_over_where_the_name_is_a_data_set(tmp_path: Path) -> None:
    named = [
        {"name": "nemotron-post-training-v2", "splits": {"chat": 30, "math": 0}},
        {"name": "sharegpt", "splits": {"all": 5}},
        {"name": "mtbench", "splits": {"all": 0}},
    ]
    manifest, mix = _read(tmp_path, {"outputs": [{"filename": "x.jsonl", "global_limit": 9, "sources": named}]})
    assert [(source.name, source.count) for source in manifest.sources] == [
        ("Nemotron-Post-Training-Dataset-v2-chat", 30)
    ]
    assert _noted(mix, "sharegpt: a name that is resolved inside that project's script")
    assert not _noted(mix, "mtbench")


@pytest.mark.parametrize("mixer", [{"o/math": 30, "o/chat": 0.5}, ["o/math", "30", "o/chat", "0.5"]])
def test_a_dataset_mixer_keeps_counts_and_turns_fractions_into_counts(tmp_path: Path, mixer: Any) -> None:
    name = "dataset_mixer" if isinstance(mixer, dict) else "dataset_mixer_list"
    manifest, mix = _read(tmp_path, {name: mixer, "learning_rate": 5e-6})
    assert [(source.name, source.count) for source in manifest.sources] == [("math", 30), ("chat", 250)]
    assert _noted(mix, "training settings (1 fields, learning_rate): not carried over")
    assert _noted(mix, "fractions of a data set become that part of 500 prompts: o/chat 0.5")


def test_a_nemotron_blend_keeps_subsets_and_leaves_documents_out(tmp_path: Path) -> None:
    datasets = [
        {"name": "if chat", "path": "hf://o/if", "subset": "chat_if", "weight": 2.5},
        {"name": "swe", "path": "hf://datasets/o/swe"},
        {"name": "web", "path": "hf://o/web", "text_field": "text", "weight": 1.0},
        {"name": "bucket", "path": "s3://x/y"},
    ]
    manifest, mix = _read(tmp_path, {"_missing": "math", "datasets": datasets}, "blend.json")
    assert manifest.total == 1000
    assert [
        (source.name, source.weight, source.hub and source.hub.repo, source.hub and source.hub.config)
        for source in manifest.sources
    ] == [
        ("if_chat", 2.5, "o/if", "chat_if"),
        ("swe", 1, "o/swe", None),
    ]
    assert all(
        _noted(mix, words) for words in ("hold no prompts; left out: web", "s3://x/y: not on the hub", "_missing: math")
    )


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {"process": [], "np": 4},
            r"no mix that is known \(found process, np\); expected `datasets` with repo_id or path",
        ),
        ([1], r"no mix that is known \(found list\)"),
        ({"datasets": []}, "no mix that is known"),
        (
            {"sources": [{"hf_path": "o/x", "apply_chat_template": False}]},
            "nothing in it can be asked; o/x: plain text",
        ),
        ({"sources": [{"hf_path": "o/x", "ratio": -1}]}, "sources.0.weight: Input should be greater than 0"),
    ],
)
def test_what_is_no_mix_is_said_on_one_line(tmp_path: Path, document: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        _read(tmp_path, document)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_or_no_document_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read .*: No such file"):
        read_mix(tmp_path / "none.yaml", "m", 1, 1)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ValueError, match="neither YAML nor JSON"):
        read_mix(tmp_path / "a.json", "m", 1, 1)


def test_the_command_writes_a_manifest_that_loads_and_says_what_to_check(tmp_path: Path) -> None:
    mix, out = tmp_path / "mix.yaml", tmp_path / "manifest.yaml"
    mix.write_text(yaml.safe_dump({"dataset_mixer": {"o/math": 30}}))
    said = import_mix(ImportMixCommand(mix=mix, out=out))
    assert load(out)[0].sources[0].count == 30
    assert f"{out}: 1 sources. Not carried over, or to check:\n- " in said
    assert "licences are not in the mix" in said
    assert import_mix(ImportMixCommand(mix=mix)).startswith(
        "# yaml-language-server: $schema=manifest.schema.json\nname: mix\n"
    )

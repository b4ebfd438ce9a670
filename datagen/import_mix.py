"""Published mixes as manifests.

People already write down what to train on, each project in its own form. A reader here takes one such document and returns the
manifest that asks for the same prompts, and notes on what it could not carry over: training settings, augmentations, splits for
evaluation, and data that holds no prompts. Domains and licences, which most forms lack, are guessed or left open, and said so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import yaml
from pydantic import ValidationError

from manifests.schema import Manifest, first_problems

UNKNOWN_LICENSE = "unknown"

_DOMAIN_WORDS = (
    ("multilingual", r"multilingual|aya|translat|_(?:de|es|fr|it|ja|zh|ko|pt|ru)$"),
    ("safety", r"safety|jailbreak|wildguar|coconot"),
    ("tool_use", r"tool|agent|function|terminal"),
    ("code", r"code|coding|program|swe|infinibyte|sql|humaneval|python|exercism"),
    ("math", r"math|gsm8k|proof|lean|algebra"),
    ("science", r"scien|stem|mcq|rqa|sciriff"),
    ("instruction_following", r"instruction.?following|\bif\b|ifdata|structured"),
    ("finance", r"financ"),
    ("chat", r"chat|oasst|magpie|ultra|sharegpt|no_robots|tulu|flan|table"),
)
"""Domains by words in the names of data sets; the first that matches."""

_NAMED_SETS = {
    "nemotron-post-training-v2": "nvidia/Nemotron-Post-Training-Dataset-v2",
    "daring-anteater": "nvidia/Daring-Anteater",
}
"""What Model-Optimizer's script for named data sets reads for a name, where that is one hub data set as it stands."""


@dataclass(slots=True)
class Mix:
    """A mix as a manifest, and what it lacks."""

    manifest: dict[str, Any]
    """The manifest as its YAML file would be read."""
    notes: list[str] = field(default_factory=list)
    """What was not carried over, and what a person should check; one sentence each."""


def read_mix(path: Path, target: str, total: int, uncapped: int) -> Mix:
    """Return the manifest of a published mix.

    Args:
        path: YAML or JSON file.
        target: model that should answer; the mixes name none.
        total: prompts in all, where the mix has weights but no size.
        uncapped: prompts to take where the mix takes a whole data set.

    Raises:
        ValueError: not YAML or JSON, or none of the forms that are known.
    """
    document = _load(path)
    reader = _reader_of(document)
    if reader is None:
        fields = ", ".join(list(document)[:8]) if isinstance(document, dict) else type(document).__name__
        raise ValueError(
            f"{path}: no mix that is known (found {fields}); expected `datasets` with repo_id or path, `sources` with hf_path or "
            "hf_dataset, `outputs` with named sources, or `dataset_mixer`"
        )
    sources, sizes, notes = reader(document, total, uncapped)
    if not sources:
        raise ValueError(f"{path}: nothing in it can be asked; {'; '.join(notes)}")
    manifest = {
        "name": re.sub(r"[^A-Za-z0-9_.\-]+", "_", path.stem),
        "target": {"model": target},
        **sizes,
        "sources": _uniquely_named(sources),
    }
    try:
        Manifest.model_validate(manifest)
    except ValidationError as error:
        raise ValueError(f"{path}: {first_problems(error)}") from error
    return Mix(manifest, [*notes, *_general_notes(manifest)])


Reading = tuple[list[dict[str, Any]], dict[str, Any], list[str]]
"""Sources, sizes of the whole mix (`total` or `total_tokens`), and notes."""


def _read_capped_datasets(document: dict[str, Any], total: int, uncapped: int) -> Reading:
    """Model-Optimizer's `datasets: [{repo_id, splits, cap_per_split, augment}]`."""
    sources, notes, whole, augmented = [], [], [], 0
    for entry in document["datasets"]:
        cap = entry.get("cap_per_split")
        for split in entry.get("splits") or ["train"]:
            sources.append(_source(entry["repo_id"], split=split, count=cap or uncapped))
            if not cap:
                whole.append(f"{entry['repo_id']} {split}")
        augmented += bool(entry.get("augment"))
    notes.append("the mix takes the first rows of a split, the manifest a sample of them")
    if whole:
        notes.append(
            f"{len(whole)} splits are taken whole there, and up to {uncapped} prompts each here: {_some(whole)}"
        )
    if augmented:
        notes.append(f"augmented copies (`augment` on {augmented} data sets): not carried over")
    return sources, {}, notes


def _read_blend(document: dict[str, Any], total: int, uncapped: int) -> Reading:
    """Model-Optimizer's `sources: [{hf_path, split, ratio, category, chat_key}]` with `blend_size`."""
    sources, notes = [], []
    for entry in document["sources"]:
        if entry.get("apply_chat_template") is False:
            notes.append(f"{entry['hf_path']}: plain text without a chat template holds no prompts; left out")
            continue
        if entry["hf_path"].startswith(("/", "./", "~")):
            notes.append(f"{entry['hf_path']}: a folder saved by `datasets`; left out, name its files in `files`")
            continue
        options = dict(entry.get("dataset_kwargs") or {})
        config = options.pop("name", None)
        if options:
            notes.append(f"{entry['hf_path']}: dataset_kwargs {', '.join(options)} not carried over")
        for split, share in _split_shares(entry.get("split", "train")).items():
            sources.append(
                _source(
                    entry["hf_path"],
                    config=config,
                    split=split,
                    weight=entry.get("ratio", 1) * share,
                    domain=entry.get("category"),
                    column=entry.get("chat_key"),
                )
            )
    if "splits" in document:
        notes.append("splits into train, eval and test: not carried over; `curate build` holds documents out by itself")
    return sources, {"total": int(document.get("blend_size") or total)}, notes


def _read_token_blend(document: dict[str, Any], total: int, uncapped: int) -> Reading:
    """Model-Optimizer's `sources: [{hf_dataset, config, split, content_field, weight}]` with `target_tokens`."""
    sources = []
    for entry in document["sources"]:
        column = entry.get("content_field")
        sources.append(
            _source(
                entry["hf_dataset"],
                config=entry.get("config"),
                split=entry.get("split", "train"),
                weight=entry.get("weight", 1),
                column=None if column == "messages" else column,
            )
        )
    if "target_tokens" not in document:
        return sources, {"total": total}, []
    note = "`target_tokens` counts prompts too, `total_tokens` completions only; weights are of prompts here, of tokens there"
    return sources, {"total_tokens": int(document["target_tokens"])}, [note]


def _read_named_outputs(document: dict[str, Any], total: int, uncapped: int) -> Reading:
    """Model-Optimizer's `outputs: [{filename, global_limit, sources: [{name, splits: {split: count}}]}]`."""
    sources, notes = [], []
    for output in document["outputs"]:
        for entry in output["sources"]:
            counts = {split: count for split, count in (entry.get("splits") or {}).items() if count}
            repo = _NAMED_SETS.get(entry["name"])
            if counts and repo is None:
                notes.append(f"{entry['name']}: a name that is resolved inside that project's script; left out")
            elif repo is not None:
                sources += [_source(repo, split=split, count=count) for split, count in counts.items()]
        if output.get("global_limit"):
            notes.append(f"{output['filename']}: `global_limit` {output['global_limit']} not carried over")
    if len(document["outputs"]) > 1:
        notes.append("several outputs become one manifest")
    return sources, {}, notes


def _read_dataset_mixer(document: dict[str, Any], total: int, uncapped: int) -> Reading:
    """open-instruct's `dataset_mixer: {repo: count or fraction}`, or its list form `[repo, "count or fraction", ...]`."""
    mixer: Any = document.get("dataset_mixer") or document.get("dataset_mixer_list")
    if isinstance(mixer, list):
        mixer = dict(zip(mixer[::2], mixer[1::2], strict=True))
    sources, fractions = [], []
    for repo, amount in mixer.items():
        amount = float(amount) if "." in str(amount) else int(amount)
        if isinstance(amount, float):
            fractions.append(f"{repo} {amount}")
        sources.append(_source(repo, count=max(1, round(uncapped * amount)) if isinstance(amount, float) else amount))
    settings = [name for name in document if not name.startswith("dataset_mixer")]
    notes = [f"training settings ({len(settings)} fields, {_some(settings)}): not carried over"] if settings else []
    if fractions:
        notes.append(f"fractions of a data set become that part of {uncapped} prompts: {_some(fractions)}")
    return sources, {}, notes


def _read_nemotron_blend(document: dict[str, Any], total: int, uncapped: int) -> Reading:
    """Nemotron's `datasets: [{name, path: hf://..., subset, split, weight}]`."""
    sources, notes = [], []
    texts = [entry["name"] for entry in document["datasets"] if "text_field" in entry]
    for entry in document["datasets"]:
        if "text_field" in entry:
            continue
        repo = entry["path"].removeprefix("hf://").removeprefix("datasets/")
        if "://" in entry["path"] and not entry["path"].startswith("hf://"):
            notes.append(f"{entry['path']}: not on the hub; left out")
            continue
        sources.append(
            _source(
                repo,
                name=entry["name"],
                config=entry.get("subset"),
                split=entry.get("split", "train"),
                weight=entry.get("weight") or 1,
            )
        )
    if texts:
        notes.append(f"{len(texts)} data sets of documents for pretraining hold no prompts; left out: {_some(texts)}")
    notes += [f"{name}: {document[name]}" for name in document if name.startswith("_")]
    if sources:
        notes.append(
            "`subset` is taken for the hub's configuration; where it names files, give `hub.data_files` instead"
        )
    return sources, {"total": total}, notes


_Reader = Callable[[dict[str, Any], int, int], Reading]


def _reader_of(document: Any) -> _Reader | None:
    """Tell the form of a mix by its fields."""
    if not isinstance(document, dict):
        return None
    if document.get("dataset_mixer") or document.get("dataset_mixer_list"):
        return _read_dataset_mixer
    by_first: tuple[tuple[str, str, _Reader], ...] = (
        ("datasets", "repo_id", _read_capped_datasets),
        ("datasets", "path", _read_nemotron_blend),
        ("sources", "hf_path", _read_blend),
        ("sources", "hf_dataset", _read_token_blend),
        ("outputs", "sources", _read_named_outputs),
    )
    for name, key, reader in by_first:
        entries = document.get(name)
        if isinstance(entries, list) and entries and all(isinstance(entry, dict) and key in entry for entry in entries):
            return reader
    return None


def _load(path: Path) -> Any:
    try:
        content = path.read_bytes()
        return orjson.loads(content) if path.suffix == ".json" else yaml.safe_load(content)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (orjson.JSONDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: neither YAML nor JSON: {' '.join(str(error).split())[:200]}") from error


def _source(
    repo: str,
    *,
    name: str | None = None,
    config: str | None = None,
    split: str = "train",
    count: int | None = None,
    weight: float | None = None,
    domain: str | None = None,
    column: str | None = None,
) -> dict[str, Any]:
    described = name or "-".join(
        part for part in (repo.split("/")[-1], config, split if split != "train" else None) if part
    )
    hub = {"repo": repo, "config": config, "split": split if split != "train" else None}
    source = {
        "name": re.sub(r"[^A-Za-z0-9_.\-]+", "_", described).strip("._-"),
        "hub": {key: value for key, value in hub.items() if value is not None},
        "column": column,
        "domain": _domain_name(domain) if domain else _guess_domain(f"{repo} {described}"),
        "license": UNKNOWN_LICENSE,
        "count": count,
        "weight": None if weight is None else round(weight, 6),
    }
    return {key: value for key, value in source.items() if value is not None}


def _split_shares(split: Any) -> dict[str, float]:
    """Return the share of each split of a blend's entry: one name, several with commas, or weights by name."""
    if isinstance(split, dict):
        return {name: share / sum(split.values()) for name, share in split.items()}
    names = [name.strip() for name in str(split).split(",")]
    return {name: 1 / len(names) for name in names}


def _guess_domain(text: str) -> str:
    return next((domain for domain, words in _DOMAIN_WORDS if re.search(words, text.lower())), "general")


def _domain_name(category: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", category.lower()).strip("_") or "general"


def _uniquely_named(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    seen: dict[str, int] = {}
    for source in sources:
        seen[source["name"]] = number = seen.get(source["name"], 0) + 1
        if number > 1:
            source["name"] += f"-{number}"
    return sources


def _general_notes(manifest: dict[str, Any]) -> list[str]:
    guessed = sorted({source["domain"] for source in manifest["sources"]})
    return [
        f"domains ({', '.join(guessed)}) come from categories or are guessed from names: check them",
        "licences are not in the mix and are written as `unknown`: look them up, then list what you allow in `licenses`",
        "revisions are not pinned: add `hub.revision` to each source",
        f"`target.model` is {manifest['target']['model']}, and `sampling` the default: set both",
    ]


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")

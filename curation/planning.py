"""`curate plan`, from its inputs to its files: a section of DATA_EXPANSION.md and a manifest ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from curation import expansion, next_manifest, recipe
from curation.corpus import open_corpus
from curation.expansion import Plan
from curation.expansion_report import plan_markdown, plan_text, write_section
from curation.facts import ReadingSettings
from curation.next_manifest import Grown
from curation.options import PlanOptions
from curation.profiles import profile as make_profile
from curation.target import Origin, find_origin
from manifests import schema
from manifests.schema import Manifest


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and what was written of it."""

    plan: Plan
    grown: Grown | None
    """None where no manifest is known."""
    text: str
    document: Path
    manifest: Path | None


def make_plan(options: PlanOptions) -> Planned:
    """Plan what to generate next, and write it.

    Raises:
        ValueError: an input cannot be read, there are no target shares, or the output cannot be written.
    """
    folder = options.profile if options.profile.is_dir() else options.profile.parent
    origin = find_origin(folder, options.manifest)
    targets = recipe.parse_shares(options.domains) if options.domains is not None else origin.domains
    speed = options.tokens_per_second or measured_speed(folder)
    plan = expansion.plan(
        expansion.stocks_of(_profile(options.profile, origin)),
        targets,
        taus=expansion.taus_of(_read_json(options.evaluation)) if options.evaluation is not None else None,
        total_tokens=options.total_tokens,
        expected_tokens=origin.manifest.expected_tokens if origin.manifest else 1024,
        tokens_per_second=speed,
        gain_per_doubling=options.gain_per_doubling,
    )
    grown, path = None, None
    if origin.manifest is not None and plan.growths:
        manifest, path = _place_for(origin.manifest, options)
        grown = next_manifest.grow(manifest, plan.growths, next_manifest.shipped_mixes())
        if grown.sources:
            next_manifest.write(grown, path, _comment(plan, grown, origin.manifest.name))
    write_section(options.document, plan_markdown(plan, grown, options.price_per_hour))
    written = path if grown is not None and grown.sources else None
    return Planned(plan, grown, plan_text(plan, grown, options.price_per_hour), options.document, written)


def measured_speed(folder: Path) -> float | None:
    """Return the completion tokens per second that the runs on a folder made over their life, all ranks together."""
    total = 0.0
    for path in sorted(folder.glob("status*.json")):
        rates = _read_json(path).get("completion_tokens_per_s")
        if isinstance(rates, Mapping):
            total += float(rates.get("life") or 0)
    return total or None


def _profile(path: Path, origin: Origin) -> dict[str, Any]:
    """Return a profile as JSON: of the folder as it is now, or as a file has it."""
    if path.is_dir():
        corpus = open_corpus(path, settings=ReadingSettings(source_domains=origin.source_domains))
        return make_profile(corpus, origin.domains).as_json()
    return _read_json(path)


def _place_for(manifest: Manifest, options: PlanOptions) -> tuple[Manifest, Path]:
    """Return the manifest as it will be written, and where.

    Globs of local files are relative to a manifest's folder, and a plan may not change them; so the next manifest goes
    beside the one that was named. A mix that ships with Draftmill is no place to write: there the globs become absolute.
    """
    manifest = manifest.model_copy(
        update={"licenses": (*manifest.licenses, *options.allow_licenses)} if manifest.licenses else {}
    )
    name = f"{manifest.name}_next.yaml"
    if options.manifest is None:
        return manifest, options.out or Path(name)
    found = schema.find(options.manifest)
    if found.parent != schema.SHIPPED and options.out is None:
        return manifest, found.parent / name
    out = options.out or Path(name)
    if out.resolve().parent == found.parent:
        return manifest, out
    sources = tuple(
        source.model_copy(update={"files": _absolute(source.files, found.parent)})
        if source.files is not None
        else source
        for source in manifest.sources
    )
    return manifest.model_copy(update={"sources": sources}), out


def _absolute(files: str | tuple[str, ...], folder: Path) -> str | tuple[str, ...]:
    if isinstance(files, str):
        return str(folder / files)
    return tuple(str(folder / pattern) for pattern in files)


def _comment(plan: Plan, grown: Grown, name: str) -> str:
    lines = [f"{name}, grown by `curate plan`: {sum(step.add for step in grown.sources):,} more prompts."]
    lines += [f"  {growth.domain}: {growth.prompts:,} prompts wanted" for growth in plan.growths]
    lines += [f"  {domain}: {prompts:,} of them have no source yet" for domain, prompts in grown.unfilled.items()]
    lines.append("Weights have become counts, so that every prompt that was asked before stays.")
    return "\n".join(lines)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"cannot read {path}: {error.strerror}; `curate profile` and `drafter evaluate` write such files"
        ) from error
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value

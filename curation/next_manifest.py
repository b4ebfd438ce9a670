"""From what a plan wants to a manifest that asks for it.

A manifest grows the way datagen lets a plan grow: counts rise, sources are added, nothing else changes, so every answer that
was paid for stays. What a domain lacks is asked of its own sources first, in proportion to their shares and up to their
caps, then of the sources that the shipped mixes name for that domain, where their licence is allowed. What is left is said, not hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from curation.expansion import Growth
from manifests import schema
from manifests.schema import Manifest, Source


@dataclass(frozen=True, slots=True)
class SourceGrowth:
    """More prompts of one source."""

    source: Source
    have: int
    """Prompts that the manifest asks for already; 0 for a source that is new to it."""
    add: int
    """Prompts to ask beyond those."""


@dataclass(frozen=True, slots=True)
class Grown:
    """A manifest ready to run, and what it adds."""

    manifest: Manifest
    sources: list[SourceGrowth]
    unfilled: dict[str, int]
    """Prompts by domain that no known source can give."""
    barred: dict[str, list[str]]
    """By domain, licences that the manifest does not allow of sources that could give more."""


def grow(manifest: Manifest, growths: Iterable[Growth], catalogue: Sequence[Manifest]) -> Grown:
    """Return the manifest that asks for what `growths` lack.

    Args:
        manifest: what was asked so far.
        growths: domains and new prompts.
        catalogue: mixes whose hub sources are added where the manifest's own are used up, the preferred mix first.
    """
    base = asked(manifest)
    added: dict[str, int] = {}
    new: list[Source] = []
    unfilled: dict[str, int] = {}
    barred: dict[str, list[str]] = {}
    for growth in growths:
        own = [source for source in manifest.sources if source.domain == growth.domain]
        shared = _share_out(growth.prompts, own, base)
        added |= shared
        left = growth.prompts - sum(shared.values())
        closed: set[str] = set()
        for mix in catalogue:
            offered = [source for source in _new_sources(mix, manifest, new) if source.domain == growth.domain]
            allowed = [source for source in offered if not manifest.licenses or source.license in manifest.licenses]
            closed |= {source.license for source in offered} - {source.license for source in allowed}
            by_name = {source.name: source for source in allowed}
            for name, prompts in _share_out(left, allowed, dict.fromkeys(by_name, 0)).items():
                new.append(by_name[name].model_copy(update={"count": prompts, "weight": None}))
                left -= prompts
        if left:
            unfilled[growth.domain] = left
            barred |= {growth.domain: sorted(closed)} if closed else {}
    kept = [
        _raised(source, base[source.name], added.get(source.name, 0), bool(added or new)) for source in manifest.sources
    ]
    grown = manifest.model_copy(
        update={"sources": (*kept, *new)} | ({"total": None, "total_tokens": None} if added or new else {})
    )
    checked = Manifest.model_validate(grown.model_dump(mode="json"))
    steps = [SourceGrowth(source, base[source.name], added[source.name]) for source in kept if added.get(source.name)]
    return Grown(checked, steps + [SourceGrowth(source, 0, source.count or 0) for source in new], unfilled, barred)


def asked(manifest: Manifest) -> dict[str, int]:
    """Return the prompts that a manifest asks of each source, weights turned into counts, rounded up."""
    weighted = sum(source.weight for source in manifest.sources if source.weight is not None)
    total = manifest.total or (manifest.total_tokens or 0) / manifest.expected_tokens
    counts = {}
    for source in manifest.sources:
        prompts = source.count if source.count is not None else math.ceil(total * (source.weight or 0) / weighted)
        counts[source.name] = prompts if source.cap is None else min(prompts, source.cap)
    return counts


def shipped_mixes() -> list[Manifest]:
    """Return the mixes that ship with Draftmill, those that cover most domains first."""
    mixes = [schema.load(path)[0] for path in schema.SHIPPED.glob("*.yaml")]
    return sorted(mixes, key=lambda mix: (-len({source.domain for source in mix.sources if source.hub}), mix.name))


def write(grown: Grown, path: Path, comment: str) -> None:
    """Write a manifest as YAML below a comment, and read it back.

    Raises:
        ValueError: the folder cannot be written.
    """
    document = grown.manifest.model_dump(mode="json", exclude_defaults=True)
    text = "".join(f"# {line}\n" for line in comment.splitlines())
    try:
        path.write_text(
            text + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=110), encoding="utf-8"
        )
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    assert schema.load(path)[0] == grown.manifest, "a manifest must read as it was written"


def _new_sources(mix: Manifest, manifest: Manifest, new: list[Source]) -> list[Source]:
    """Return the hub sources of a mix that are not in the manifest yet, under this name or another."""
    present = [*manifest.sources, *new]
    places, names = {_place(source) for source in present}, {source.name for source in present}
    return [s for s in mix.sources if s.hub is not None and _place(s) not in places and s.name not in names]


def _share_out(prompts: int, sources: list[Source], base: Mapping[str, int]) -> dict[str, int]:
    """Return prompts by source name: in proportion to what is asked of them already (or to weights), up to their room."""
    room = {source.name: _room(source, base[source.name]) for source in sources}
    parts = {source.name: float(base[source.name] or source.weight or source.count or 1) for source in sources}
    shared = dict.fromkeys(room, 0)
    while (left := prompts - sum(shared.values())) > 0:
        open_ = {name: parts[name] for name in room if shared[name] < room[name]}
        if not open_:
            break
        whole = sum(open_.values())
        for name, part in sorted(open_.items(), key=lambda item: (-item[1], item[0])):
            give = min(math.ceil(left * part / whole), room[name] - shared[name], prompts - sum(shared.values()))
            shared[name] += int(give)
    return {name: count for name, count in shared.items() if count}


def _room(source: Source, base: int) -> float:
    """Return how many more prompts a source may give. Local files with an exact count are taken to be used up."""
    if source.cap is not None:
        return max(0, source.cap - base)
    return 0 if source.files is not None and source.count is not None else math.inf


def _raised(source: Source, base: int, add: int, counted: bool) -> Source:
    """Return a source that asks for more; once one source is counted all are, because weights share a total."""
    return source.model_copy(update={"count": base + add, "weight": None}) if counted else source


def _place(source: Source) -> tuple[Any, ...]:
    """Return what tells two sources apart whatever they are called."""
    rows = tuple(sorted(source.filters.where.items()))
    if source.hub is None:
        return ("files", source.files, rows)
    return ("hub", source.hub.repo, source.hub.config, source.hub.split, source.hub.data_files, rows)

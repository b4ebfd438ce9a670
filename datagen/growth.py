"""What may change between a plan and the manifest it is asked to follow.

A plan only grows. Shares, counts, caps and the total may rise and sources may be added; weights may change either way, since a
weight is relative, and prompts that a smaller share would no longer draw stay: they are planned, and perhaps paid for. What no
row depends on (target shares, notes, allowed licences, engine settings) may change freely. Everything else makes another data set.
"""

from __future__ import annotations

from typing import Any

from datagen.shares import total_prompts
from manifests.schema import Manifest, Source

_FREE = {
    "name",
    "description",
    "domains",
    "languages",
    "licenses",
    "target.engine",
    "total",
    "total_tokens",
    "expected_tokens",
    "sources",
}
_FREE_OF_SOURCE = {"notes", "license", "weight", "count", "cap", "hub.gated"}


def obstacles(old: Manifest, new: Manifest, planned: dict[str, int]) -> list[str]:
    """Return what keeps a plan from growing into `new`, each as a phrase for a person; empty where nothing does.

    Args:
        old: the manifest that the plan follows.
        new: the manifest it should follow.
        planned: prompts in the plan by source.
    """
    found = [f"`{path}` was {was}, is {now}" for path, was, now in _changes(_plain(old), _plain(new), _FREE)]
    if total_prompts(new) < total_prompts(old):
        found.append(f"the total falls from {total_prompts(old)} to {total_prompts(new)} prompts")
    after = {source.name: source for source in new.sources}
    for source in old.sources:
        if source.name not in after:
            found.append(f"source {source.name!r} is gone")
            continue
        now = after[source.name]
        changes = _changes(_plain(source), _plain(now), _FREE_OF_SOURCE)
        found += [f"`{path}` of source {source.name!r} was {was}, is {is_now}" for path, was, is_now in changes]
        found += _too_few(now, planned[source.name])
    return found


def _too_few(source: Source, planned: int) -> list[str]:
    most = [
        (name, value)
        for name, value in (("count", source.count), ("cap", source.cap))
        if value is not None and value < planned
    ]
    return [
        f"`{name}` of source {source.name!r} is {value}, below the {planned} prompts already planned"
        for name, value in most
    ]


def _plain(model: Manifest | Source) -> dict[str, Any]:
    return model.model_dump(mode="json")


def _changes(old: dict[str, Any], new: dict[str, Any], free: set[str], path: str = "") -> list[tuple[str, Any, Any]]:
    """Return (path, old value, new value) of every field that differs and is not free to."""
    found: list[tuple[str, Any, Any]] = []
    for name in sorted(old.keys() | new.keys()):
        here, was, now = path + name, old.get(name), new.get(name)
        if here in free or was == now:
            continue
        if isinstance(was, dict) and isinstance(now, dict):
            found += _changes(was, now, free, here + ".")
        else:
            found.append((here, was, now))
    return found

"""What is checked before anything is read or started: access, licences, and room on the disk.

A gate, a licence or a full disk that shows after hours of generation costs money; here it costs a second.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from datagen.hub import Hub, Repository
from datagen.shares import allotments
from datagen.sources import find_files, same_license
from manifests.schema import Manifest, Source

BYTES_PER_TOKEN = 10
"""A completion token in a published shard: its id as JSON (5 to 6 bytes) and its text (4)."""

BYTES_PER_PROMPT = 8_000
"""A prompt in the plan, its spool, and (with its token ids) its shard: twice what a prompt of 2,000 characters takes."""


def check_sources(
    manifest: Manifest, manifest_folder: Path, hub: Hub, commits: dict[str, str]
) -> tuple[dict[str, Repository], list[str]]:
    """Find every source before the first is read.

    Args:
        manifest: what to ask.
        manifest_folder: anchors globs.
        hub: where hub sources are.
        commits: by source name, the commit that an earlier plan read; used where the manifest pins none.

    Returns:
        the repository of each hub source by name, and warnings.

    Raises:
        ValueError: files are missing, a data set cannot be read, or its card states a licence outside `licenses`.
    """
    repositories: dict[str, Repository] = {}
    warnings: list[str] = []
    for source in manifest.sources:
        if source.hub is None:
            find_files(source, manifest_folder)
            continue
        repository = hub.describe(source.hub.repo, source.hub.revision or commits.get(source.name))
        repositories[source.name] = repository
        warnings += _license_notice(source, repository, manifest.licenses)
    return repositories, warnings


def check_room(manifest: Manifest, folder: Path, planned_before: int = 0) -> None:
    """Make sure that the disk can hold the plan and its answers, as far as expectation goes.

    Args:
        manifest: what to ask.
        folder: where the run writes; need not exist.
        planned_before: prompts of an earlier, smaller plan, which have their room.

    Raises:
        ValueError: too little is free; says how much is needed.
    """
    place = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    prompts = sum(wanted * _rollouts(manifest)[name] for name, wanted in allotments(manifest).items()) - planned_before
    needed = max(0, prompts) * (BYTES_PER_PROMPT + manifest.expected_tokens * BYTES_PER_TOKEN)
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ValueError(
            f"{folder} has {free / 1e9:.1f} GB free, and {prompts} prompts with {manifest.expected_tokens} expected tokens each need "
            f"about {needed / 1e9:.1f} GB; lower `total`, or choose a larger disk"
        )


def _rollouts(manifest: Manifest) -> dict[str, int]:
    return {source.name: source.rollouts for source in manifest.sources}


def _license_notice(source: Source, repository: Repository, allowed: tuple[str, ...]) -> list[str]:
    stated = repository.license
    if stated is None or same_license(stated, source.license):
        return []
    if allowed and not any(same_license(stated, name) for name in allowed):
        raise ValueError(
            f"source {source.name!r}: its card says licence {stated}, which is outside `licenses` (the manifest says {source.license}); "
            "allow it or drop the source"
        )
    return [f"source {source.name}: its card says licence {stated}, the manifest says {source.license}"]

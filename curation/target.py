"""Where completions came from: the manifest behind them, and with it the target, its tokenizer, and the mix that was wanted.

Our own shards carry `run.json`, which has all of it. Other people's shards have none; a manifest on the command line then
says the same things, and without either the rows stand for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from datagen import shards
from manifests import schema
from manifests.schema import Manifest


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of how completions were made."""

    manifest: Manifest | None
    target: dict[str, Any] | None
    """The target as `set.json` names it: model, revision, dtype, chat_template_kwargs, ...; None if nothing says."""
    tokenizer: dict[str, Any] = field(default_factory=dict)
    """Digests of tokenizer files and chat template, where known."""
    run: dict[str, Any] = field(default_factory=dict)
    """What identifies the run: plan digest, engine versions."""

    @property
    def domains(self) -> dict[str, float]:
        """Target share of each domain."""
        return dict(self.manifest.domains) if self.manifest else {}

    @property
    def languages(self) -> dict[str, float]:
        """Target share of each language."""
        return dict(self.manifest.languages) if self.manifest else {}

    @property
    def source_domains(self) -> dict[str, str]:
        """Domain of each source."""
        return {source.name: source.domain for source in self.manifest.sources} if self.manifest else {}

    @property
    def licenses_by_source(self) -> dict[str, str]:
        """Licence of each source."""
        return {source.name: source.license for source in self.manifest.sources} if self.manifest else {}

    def describe(self) -> dict[str, Any]:
        """Return all of it as JSON, for a fingerprint."""
        manifest = self.manifest.model_dump(mode="json") if self.manifest else None
        return {"manifest": manifest, "target": self.target, "tokenizer": self.tokenizer, "run": self.run}


def find_origin(folder: Path, manifest_path: Path | None) -> Origin:
    """Return the origin of the completions in `folder`.

    Args:
        folder: of completions, with or without `run.json`.
        manifest_path: replaces the manifest of `run.json`.

    Raises:
        ValueError: the manifest or `run.json` cannot be read.
    """
    card = _run_card(folder)
    if manifest_path is not None:
        manifest: Manifest | None = schema.load(manifest_path)[0]
    elif "manifest" in card:
        try:
            manifest = Manifest.model_validate(card["manifest"])
        except ValidationError as error:
            raise ValueError(f"{folder / shards.RUN_CARD}: its manifest cannot be read; give --manifest") from error
    else:
        manifest = None
    rendered = card.get("target") or {}
    target = None
    if manifest is not None:
        target = manifest.target.model_dump(mode="json", exclude={"engine"})
        target |= {
            key: rendered[key] for key in ("model", "revision", "context_length") if rendered.get(key) is not None
        }
    tokenizer: dict[str, Any] = {
        key: rendered[key] for key in ("tokenizer_sha256", "chat_template_sha256") if key in rendered
    }
    run: dict[str, Any] = {key: card[key] for key in ("draftmill", "plan", "engines") if key in card}
    return Origin(manifest, target, tokenizer, run)


def _run_card(folder: Path) -> dict[str, Any]:
    try:
        card = shards.read_card(folder)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{folder / shards.RUN_CARD} is not JSON; remove it, or run datagen again") from error
    return card if isinstance(card, dict) else {}

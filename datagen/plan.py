"""The plan: a manifest expanded once into an immutable, ordered list of prompts.

Selection is by hash rank, so it does not depend on file order and it is nested: raising a share or adding a source keeps
every prompt that was already chosen, and its place, and only appends. Growing a data set never repeats paid work.

On disk a plan is `plan/plan_000000.jsonl.zst`, ... beside the shards that answer it, one file per shard, and `plan/plan.json`,
written last: the resolved manifest, the report, and a digest per file. A conversation is never split over two shards, so
the answer that a later turn needs is always in the shard at hand. A plan that grew keeps its files' bytes: its last shard
stays as short as it was, and what was added starts a new one.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

from datagen import draw, shards
from datagen.expansion import Expansion, Progress, expand
from datagen.growth import obstacles
from datagen.limits import PromptLimit
from datagen.plan_report import PlanReport
from datagen.preflight import check_room
from datagen.prompts import PlannedPrompt, decode, encode
from datagen.rendering import Renderer
from manifests.schema import Manifest

__all__ = ["Expansion", "Plan", "PlanReport", "PlannedPrompt", "expand", "open_or_create", "open_plan", "write"]

FOLDER = "plan"
"""Sub-folder of a run's folder that holds its plan."""

CARD = "plan.json"
"""Written last; its presence means that the plan is whole."""


@dataclass(frozen=True, slots=True)
class PlanShard:
    """What the card says of one shard of the plan."""

    num_rows: int
    digest: str
    """SHA-256 of the rows, before compression."""


class Plan:
    """A plan on disk. Shards are read when asked for, so memory is that of one shard."""

    def __init__(self, folder: Path, card: dict[str, Any]) -> None:
        self.folder = folder
        """The run's folder; the plan is in `plan/` below it."""
        self.card = card
        self.manifest = Manifest.model_validate(card["manifest"])
        """The resolved manifest, as last expanded."""
        self.shards = [PlanShard(**shard) for shard in card["shards"]]
        self.report = PlanReport.from_dict(card["report"])

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of all shards: equal digests, equal plans."""
        return hashlib.sha256("".join(shard.digest for shard in self.shards).encode()).hexdigest()

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)

    @property
    def num_shards(self) -> int:
        return len(self.shards)

    @property
    def shard_rows(self) -> int:
        """Rows of a full shard; `shards[index].num_rows` is what one really has."""
        return self.manifest.shard_rows

    def shard(self, index: int) -> list[PlannedPrompt]:
        """Return the rows of one shard in plan order.

        Raises:
            ValueError: the file is missing or is not what the card says.
        """
        path = self.folder / FOLDER / shard_file(index)
        try:
            lines = zstandard.ZstdDecompressor().decompress(path.read_bytes(), max_output_size=0)
        except (FileNotFoundError, zstandard.ZstdError) as error:
            raise ValueError(
                f"{path} is missing or damaged ({error}); restore it, or plan into a fresh folder"
            ) from error
        if hashlib.sha256(lines).hexdigest() != self.shards[index].digest:
            raise ValueError(f"{path} is not the file that {CARD} describes; restore it, or plan into a fresh folder")
        return [decode(line) for line in lines.splitlines()]

    def prompts(self) -> Iterator[PlannedPrompt]:
        """Yield every row in plan order, a shard at a time."""
        for index in range(self.num_shards):
            yield from self.shard(index)


def shard_file(index: int) -> str:
    """Return the file name of the plan of shard `index` (0-based)."""
    return f"plan_{index:06d}.jsonl.zst"


def open_plan(folder: Path) -> Plan:
    """Return the plan of a run's folder.

    Raises:
        ValueError: it has none.
    """
    path = folder / FOLDER / CARD
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no plan; `datagen run --manifest ...` or `datagen plan --out {folder}` makes one"
        )
    return Plan(folder, orjson.loads(path.read_bytes()))


def write(expansion: Expansion, folder: Path, after: Plan | None = None) -> Plan:
    """Write an expansion's shards behind those of `after` (None starts a plan), then the card. Earlier files are not touched."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    written = list(after.shards) if after else []
    for rows in expansion.shards():
        lines = b"".join(encode(prompt) for prompt in rows)
        shards.publish(place / shard_file(len(written)), [zstandard.ZstdCompressor(level=3).compress(lines)])
        written.append(PlanShard(len(rows), hashlib.sha256(lines).hexdigest()))
    card = {
        "draftmill": importlib.metadata.version("draftmill"),
        "manifest": expansion.manifest.model_dump(mode="json"),
        "report": expansion.report.as_dict(),
        "shards": [asdict(shard) for shard in written],
    }
    shards.write_card(place / CARD, card)
    return Plan(folder, card)


def open_or_create(manifest: Manifest, manifest_path: Path, folder: Path, progress: Progress | None = None) -> Plan:
    """Return the plan of a run's folder: a new one, the one that is there, or that one grown.

    A plan whose manifest is the same opens as it is, without reading a source: it holds the prompts themselves.

    Raises:
        ValueError: the folder's plan follows another manifest that this one does not merely enlarge; says what differs.
    """
    if not (folder / FOLDER / CARD).is_file():
        check_room(manifest, folder)
        return write(_expand(manifest, manifest_path, folder, progress), folder)
    plan = open_plan(folder)
    if plan.manifest == manifest:
        return plan
    differences = obstacles(plan.manifest, manifest, {source.name: source.planned for source in plan.report.sources})
    if differences:
        raise ValueError(
            f"{folder} holds a plan of another manifest: {'; '.join(differences)}{_vanishing(plan, manifest, manifest_path, progress)}. "
            "A plan only grows: undo this, or run into a fresh folder with --out"
        )
    check_room(manifest, folder, planned_before=plan.num_rows)
    grown = _expand(manifest, manifest_path, folder, progress, plan)
    for source in plan.report.sources:
        report = next(report for report in grown.report.sources if report.name == source.name)
        report.rows += source.rows
        report.expected_tokens += source.expected_tokens
    return write(grown, folder, after=plan)


def kept_ranks(plan: Plan) -> dict[str, np.ndarray]:
    """Return the ranks of the prompts in a plan, ascending uint64, by source."""
    found: dict[str, list[int]] = {source.name: [] for source in plan.manifest.sources}
    for index in range(plan.num_shards):
        for rows in _conversations(plan.shard(index)):
            if rows[0].rollout == 0:
                at = {row.id: number for number, row in enumerate(rows)}
                steps = [(row.messages, None if row.parent is None else at[row.parent]) for row in rows]
                found[rows[0].source].append(draw.rank(orjson.dumps([steps, rows[0].tools]), plan.manifest.seed))
    return {name: np.sort(np.array(ranks, dtype=np.uint64)) for name, ranks in found.items()}


def _conversations(rows: list[PlannedPrompt]) -> Iterator[list[PlannedPrompt]]:
    for _, group in itertools.groupby(rows, key=lambda row: row.conversation):
        yield list(group)


def _expand(
    manifest: Manifest, manifest_path: Path, folder: Path, progress: Progress | None, after: Plan | None = None
) -> Expansion:
    limit = PromptLimit(Renderer(manifest.target, manifest_path.parent))
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    commits = {source.name: source.commit for source in after.report.sources if source.commit} if after else {}
    kept = kept_ranks(after) if after else {}
    return expand(manifest, manifest_path, progress, limit=limit, kept=kept, commits=commits, spool_folder=place)


def _vanishing(plan: Plan, manifest: Manifest, manifest_path: Path, progress: Progress | None) -> str:
    """Say how many of a plan's rows a fresh plan of another manifest would not have."""
    planned = {bytes.fromhex(prompt.id) for prompt in plan.prompts()}
    num_planned = len(planned)
    try:
        fresh = _expand(manifest, manifest_path, plan.folder, progress)
    except ValueError:  # the other manifest cannot even be expanded here; what differs has been said
        return ""
    for prompt in fresh.prompts:
        planned.discard(bytes.fromhex(prompt.id))
    return f"; {len(planned)} of its {num_planned} rows would not be asked"

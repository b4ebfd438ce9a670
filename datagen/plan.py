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
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import zstandard

from datagen import shards
from manifests.schema import Manifest, Sampling

FOLDER = "plan"
"""Sub-folder of a run's folder that holds its plan."""

CARD = "plan.json"
"""Written last; its presence means that the plan is whole."""


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One generation to make: a row of the plan, and later a row of a shard."""

    id: str
    """Content hash of (source, prompt, turn policy, rollout): 32 hexadecimal digits."""
    source: str
    domain: str
    messages: list[dict[str, Any]]
    """OpenAI messages that this row adds: the whole prompt, or, after `parent`, the turns since its answer."""
    tools: list[dict[str, Any]] | None
    """Tool definitions for the chat template."""
    sampling: Sampling
    """Resolved: the manifest's sampling with the source's overrides."""
    thinking: bool | None
    """Thinking on or off for this row; None leaves it to the target's `chat_template_kwargs`."""
    parent: str | None
    """Id of the row whose answer precedes `messages` (turn policy `all`); None for a first turn."""
    conversation: str
    """Key that the turns of one conversation share; equals `id` of its first row."""
    rollout: int
    """0-based generation number for the same prompt."""


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
        return [_decode(line) for line in lines.splitlines()]

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


def store(
    folder: Path,
    batches: Iterable[list[PlannedPrompt]],
    manifest: Manifest,
    report: dict[str, Any],
    kept: Plan | None = None,
) -> Plan:
    """Write shards of rows after those of `kept` (None starts a plan), then the card. Earlier files are not touched."""
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    written = list(kept.shards) if kept else []
    for batch in batches:
        lines = b"".join(_encode(prompt) for prompt in batch)
        shards.publish(place / shard_file(len(written)), [zstandard.ZstdCompressor(level=3).compress(lines)])
        written.append(PlanShard(len(batch), hashlib.sha256(lines).hexdigest()))
    card = {
        "manifest": manifest.model_dump(mode="json"),
        "report": report,
        "shards": [asdict(shard) for shard in written],
    }
    shards.write_card(place / CARD, card)
    return Plan(folder, card)


def _encode(prompt: PlannedPrompt) -> bytes:
    row = {name: getattr(prompt, name) for name in PlannedPrompt.__slots__}
    return shards.encode_row({**row, "sampling": prompt.sampling.model_dump(mode="json")})


def _decode(line: bytes) -> PlannedPrompt:
    row = orjson.loads(line)
    row["sampling"] = Sampling.model_validate(row["sampling"])
    return PlannedPrompt(**row)

"""The ledger of a run's folder: which planned rows are done, failed or pending, read from the files and nothing else.

A shard is in one of three states, told apart by what exists:

- a journal (`.journal/shard_000012.log`): open, and the journal alone says which rows are done;
- no journal, but `completions_000012.jsonl`: finished; rows it lacks are in `failed.jsonl`;
- neither: untouched.

Publishing therefore goes: failures into `failed.jsonl`, the shard under its name, its digest into `SHA256SUMS`, and only
then the journal goes. A kill between any two of these leaves a journal, from which the same steps are done again with
the same result. A row that failed is left out of its shard; when it is retried and succeeds, the shard is written anew.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from datagen import journal, locking, shards
from datagen.journal import Journal, Place
from datagen.prompts import PlannedPrompt

if TYPE_CHECKING:
    from datagen.plan import Plan

HIDDEN = ".journal"
"""Folder inside the run's folder for journals and locks."""

FAILED = "failed.jsonl"
"""Rows that cannot be answered, each with its reason."""

SUMS = "SHA256SUMS"
"""Digests of the published shards, in the format that `sha256sum --check` reads."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row has no answer."""

    reason: str
    """`row` (refused by the engine), `transient` (gave up after its attempts), `parent` (an earlier turn failed)."""
    message: str
    attempts: int


class OpenShard:
    """A shard with rows still to be answered, and its journal."""

    def __init__(self, index: int, rows: list[PlannedPrompt], log: Journal) -> None:
        self.index = index
        self.rows = rows
        self.journal = log
        self.done: dict[int, Place] = {}
        self.failed: dict[int, Failure] = {}
        self._journal_open = threading.Lock()
        self._is_closed = False

    @property
    def pending(self) -> list[int]:
        """Positions without an answer or a failure."""
        return [at for at in range(len(self.rows)) if at not in self.done and at not in self.failed]

    @property
    def is_complete(self) -> bool:
        """Whether every row is done or failed."""
        return len(self.done) + len(self.failed) == len(self.rows)

    def record(self, position: int, line: bytes) -> None:
        """Journal an answered row; `line` is the row's JSON without its newline."""
        self.done[position] = self.journal.append("done", self.rows[position].id, line)

    def fail(self, position: int, failure: Failure) -> None:
        """Journal a row that cannot be answered."""
        payload = orjson.dumps([failure.reason, failure.message, failure.attempts])
        self.journal.append("failed", self.rows[position].id, payload)
        self.failed[position] = failure

    def answer_to(self, row_id: str) -> dict[str, Any]:
        """Return the answered row with this id."""
        position = next(at for at in self.done if self.rows[at].id == row_id)
        return orjson.loads(self.journal.read(self.done[position]))

    def sync(self) -> None:
        """Make what was recorded so far survive a power cut; a shard published meanwhile has no need of it."""
        with self._journal_open:
            if not self._is_closed:
                self.journal.sync()

    def close(self) -> None:
        """Make everything durable and close the journal."""
        self.sync()
        with self._journal_open:
            if not self._is_closed:
                self._is_closed = True
                self.journal.close()


class Ledger:
    """Opens and publishes the shards of one rank in one folder. The caller holds the rank's lock."""

    def __init__(self, plan: Plan, folder: Path, rank: int = 0, world: int = 1) -> None:
        self.plan = plan
        self.folder = folder
        self.rank = rank
        self.world = world
        self.num_damaged = 0
        self.hidden = hidden(folder)

    def unfinished(self) -> list[int]:
        """Return the indices of this rank's shards that are not finished, in order."""
        return [
            index
            for index in range(self.rank, self.plan.num_shards, self.world)
            if self._log(index).exists() or not self.path(index).exists()
        ]

    def path(self, index: int) -> Path:
        """Return where shard `index` is published."""
        return self.folder / shards.shard_name(index)

    def open(self, index: int, retry_failed: bool = False) -> OpenShard:
        """Open a shard: replay its journal, cut its torn tail, start one where there is none.

        Args:
            retry_failed: treat journalled failures as pending.

        Raises:
            ValueError: the journal belongs to another plan.
        """
        rows = self.plan.shard(index)
        position = {planned.id: at for at, planned in enumerate(rows)}
        log = self._log(index)
        replay = journal.replay(log) if log.exists() else journal.Replay([], 0, 0)
        shard = OpenShard(index, rows, Journal(log, replay.end))
        self.num_damaged += replay.num_damaged
        for record in replay.records:
            at = position.get(record.id)
            if at is None:
                raise ValueError(f"{log} belongs to another plan; move {self.folder} away, or restore its plan")
            if record.kind == "done":
                shard.done[at] = record.place
                shard.failed.pop(at, None)
            elif at not in shard.done and not retry_failed:
                shard.failed[at] = Failure(*orjson.loads(record.payload))
        _drop_orphans(shard)
        return shard

    def reopen_failed(self) -> list[int]:
        """Give every finished shard of this rank that lacks failed rows a journal again; return their indices.

        The journal takes over the rows that the shard has, in one step, so that a kill finds either state.
        """
        wanted = sorted({entry["shard"] for entry in read_failed(self.folder)})
        mine = [index for index in wanted if index % self.world == self.rank and index < self.plan.num_shards]
        finished = [index for index in mine if self.path(index).exists() and not self._log(index).exists()]
        for index in finished:
            with shards.open_lines(self.path(index)) as lines:
                answered = [(orjson.loads(line)["id"], line.rstrip(b"\n")) for line in lines]
            shards.publish(self._log(index), (journal.encode("done", row_id, line) for row_id, line in answered))
        return finished

    def publish(self, shard: OpenShard) -> None:
        """Publish a complete shard in plan order and forget its journal."""
        assert shard.is_complete
        self.write_failures(shard)
        digest = hashlib.sha256()
        shards.publish(self.path(shard.index), _digested(_lines(shard), digest))
        self._write_sum(self.path(shard.index).name, digest.hexdigest())
        shard.close()
        shard.journal.path.unlink()

    def write_failures(self, shard: OpenShard) -> None:
        """Make `failed.jsonl` say of this shard what the shard says. Other shards' entries stay."""
        with locking.exclusive(self.hidden / "failed.lock"):
            before = read_failed(self.folder)
            after = [entry for entry in before if entry["shard"] != shard.index]
            after += [_entry(shard, at, failure) for at, failure in sorted(shard.failed.items())]
            if after != before:
                after.sort(key=lambda entry: entry["shard"])
                shards.publish(self.folder / FAILED, map(shards.encode_row, after))

    def num_failed_in(self, indices: set[int]) -> int:
        """Return how many rows of these shards `failed.jsonl` lists."""
        return sum(entry["shard"] in indices for entry in read_failed(self.folder))

    def _log(self, index: int) -> Path:
        return self.hidden / log_name(index)

    def _write_sum(self, name: str, digest: str) -> None:
        with locking.exclusive(self.hidden / "sums.lock"):
            sums = read_sums(self.folder) | {name: digest}
            shards.publish(self.folder / SUMS, (f"{sums[key]}  {key}\n".encode() for key in sorted(sums)))


def hidden(folder: Path) -> Path:
    """Return the folder of journals and locks inside a run's folder, made where it is missing."""
    path = folder / HIDDEN
    path.mkdir(parents=True, exist_ok=True)
    return path


def log_name(index: int) -> str:
    """Return the name of a shard's journal."""
    return f"shard_{index:06d}.log"


def read_failed(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of `failed.jsonl`, none where there is no such file."""
    path = folder / FAILED
    return list(shards.read_rows(path)) if path.exists() else []


def read_sums(folder: Path) -> dict[str, str]:
    """Return the digests in `SHA256SUMS` by file name."""
    path = folder / SUMS
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _drop_orphans(shard: OpenShard) -> None:
    """Ask again for turns whose earlier turn was lost: their history would not be what the shard says it is."""
    position = {planned.id: at for at, planned in enumerate(shard.rows)}
    for at, planned in enumerate(shard.rows):
        if planned.parent in position and position[planned.parent] not in shard.done:
            shard.done.pop(at, None)


def _lines(shard: OpenShard) -> Iterator[bytes]:
    for position in sorted(shard.done):
        yield shard.journal.read(shard.done[position]) + b"\n"


def _digested(lines: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    for line in lines:
        digest.update(line)
        yield line


def _entry(shard: OpenShard, position: int, failure: Failure) -> dict[str, Any]:
    planned = shard.rows[position]
    return {
        "id": planned.id,
        "shard": shard.index,
        "position": position,
        "source": planned.source,
        "domain": planned.domain,
        "reason": failure.reason,
        "message": failure.message,
        "attempts": failure.attempts,
    }

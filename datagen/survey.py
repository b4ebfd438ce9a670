"""Where a run's folder stands, read from its files by any process, while a run works on it or after: `datagen status`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson
import tyro
from pydantic import BaseModel, ConfigDict

from datagen import journal, ledger, locking, shards
from datagen.progress_view import duration

if TYPE_CHECKING:
    from datagen.plan import Plan

_STALE_S = 30.0


class StatusCommand(BaseModel):
    """Say where a run's folder stands: rows done, failed and pending, who works on it, how fast."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: tyro.conf.Positional[Path] = Path("completions_raw")
    """The run's folder."""
    pending: bool = False
    """List the ids of the pending rows, one a line, and nothing else."""


@dataclass(frozen=True)
class ShardSurvey:
    """One shard."""

    index: int
    state: Literal["published", "open", "untouched"]
    num_rows: int
    done: frozenset[str] | None
    """Ids of the answered rows of an open shard."""
    failed: frozenset[str]
    num_damaged: int = 0
    """Damaged records in its journal; their rows are asked again."""

    @property
    def num_done(self) -> int:
        if self.state == "published":
            return self.num_rows - len(self.failed)
        return len(self.done or ())

    @property
    def num_pending(self) -> int:
        return self.num_rows - self.num_done - len(self.failed)


def status(command: StatusCommand) -> str:
    """Return what there is to say of a folder.

    Raises:
        ValueError: it holds no plan.
    """
    from datagen.plan import open_plan  # numpy and more: not for --help

    plan = open_plan(command.folder)
    found = list(survey(plan))
    if command.pending:
        return "\n".join(pending_ids(plan, found))
    done, failed, pending = totals(found)
    states = [shard.state for shard in found]
    lines = [
        f"{command.folder}: {plan.num_rows:,} rows planned = {done:,} done + {failed:,} failed + {pending:,} pending",
        f"{len(found):,} shards: {states.count('published'):,} published, {states.count('open'):,} open, "
        f"{states.count('untouched'):,} untouched; {shutil.disk_usage(command.folder).free / 2**30:.1f} GiB free",
    ]
    working = locking.workers(command.folder / ledger.HIDDEN)
    lines += [f"at work: {who}" for who in working] or ["nobody is at work on it"]
    lines += [_said(path) for path in sorted(command.folder.glob("status*.json"))]
    return "\n".join(lines)


def survey(plan: Plan) -> Iterator[ShardSurvey]:
    """Yield the state of every shard. Only journals are read, not published shards."""
    folder = plan.folder
    failed: dict[int, set[str]] = {}
    for entry in ledger.read_failed(folder):
        failed.setdefault(entry["shard"], set()).add(entry["id"])
    for index, planned in enumerate(plan.shards):
        log = folder / ledger.HIDDEN / ledger.log_name(index)
        try:
            replay = journal.replay(log)
        except FileNotFoundError:  # never opened, or published while we look
            is_there = (folder / shards.shard_name(index)).exists()
            state: Literal["published", "untouched"] = "published" if is_there else "untouched"
            ids = frozenset(failed.get(index, ())) if is_there else frozenset[str]()
            yield ShardSurvey(index, state, planned.num_rows, None, ids)
            continue
        done = {record.id for record in replay.records if record.kind == "done"}
        lost = {record.id for record in replay.records if record.kind == "failed"} - done
        yield ShardSurvey(index, "open", planned.num_rows, frozenset(done), frozenset(lost), replay.num_damaged)


def totals(found: list[ShardSurvey]) -> tuple[int, int, int]:
    """Return rows done, failed and pending."""
    return (
        sum(shard.num_done for shard in found),
        sum(len(shard.failed) for shard in found),
        sum(shard.num_pending for shard in found),
    )


def pending_ids(plan: Plan, found: list[ShardSurvey]) -> Iterator[str]:
    """Yield the ids of the rows that have neither answer nor failure, in plan order."""
    for shard in found:
        if shard.num_pending:
            settled = (shard.done or frozenset()) | shard.failed
            yield from (planned.id for planned in plan.shard(shard.index) if planned.id not in settled)


def _said(path: Path) -> str:
    """Say what a run's own status file says, and how old it is."""
    said: dict[str, Any] = orjson.loads(path.read_bytes())
    age = time.time() - said["updated_unix_s"]
    rates = said["completion_tokens_per_s"]
    fresh = "" if age < _STALE_S else f" (as of {duration(age)} ago)"
    left = f", {duration(said['seconds_left'])} left" if said["state"] == "running" else ""
    return (
        f"{path.name}{fresh}: {said['state']}, {said['rows']['in_flight']} in flight, {rates['now']:,.0f} tokens/s now, "
        f"{rates['ten_minutes']:,.0f} over 10 min{left}"
    )

"""`datagen verify`: proves from the files alone that planned = done + failed + pending, and that every row is what it says."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import tyro
from pydantic import BaseModel, ConfigDict

from datagen import ledger, shards
from datagen.answers import seed_of
from datagen.survey import survey, totals

if TYPE_CHECKING:
    from datagen.plan import Plan

_MOST_SHOWN = 20


class VerifyCommand(BaseModel):
    """Check every row of a run's folder: ids, order, digests, and that nothing is missing or doubled."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: tyro.conf.Positional[Path] = Path("completions_raw")
    """The run's folder."""


@dataclass(frozen=True)
class Verification:
    """What was found."""

    num_planned: int
    num_done: int
    num_failed: int
    num_pending: int
    problems: list[str]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; pending rows are not wrong."""
        return not self.problems

    def __str__(self) -> str:
        sums = f"{self.num_planned:,} planned = {self.num_done:,} done + {self.num_failed:,} failed + {self.num_pending:,} pending"
        if self.is_sound:
            return f"{sums}; ids, order and digests hold"
        shown = self.problems[:_MOST_SHOWN]
        more = [f"... and {len(self.problems) - len(shown)} more"] if len(self.problems) > len(shown) else []
        return "\n".join([sums, f"{len(self.problems)} problems:", *shown, *more])


def verify(command: VerifyCommand) -> Verification:
    """Read everything in a folder and compare it with the plan.

    Raises:
        ValueError: the folder holds no plan.
    """
    from datagen.plan import open_plan  # numpy and more: not for --help

    plan = open_plan(command.folder)
    found = list(survey(plan))
    done, failed, pending = totals(found)
    problems = list(_folder_problems(plan))
    sums = ledger.read_sums(plan.folder)
    for shard in found:
        if shard.num_damaged:
            problems.append(
                f"{ledger.log_name(shard.index)}: {shard.num_damaged} damaged records, asked again on resume"
            )
        if shard.state == "published":
            problems += _shard_problems(plan, shard.index, shard.failed, sums)
    if done + failed + pending != plan.num_rows:
        problems.append(f"{done} done + {failed} failed + {pending} pending is not {plan.num_rows} planned")
    return Verification(plan.num_rows, done, failed, pending, problems)


def _folder_problems(plan: Plan) -> Iterator[str]:
    card = shards.read_card(plan.folder)
    published = [path for path in plan.folder.glob("completions_*") if shards.shard_index(path) is not None]
    if card is None:
        if published:
            yield f"{shards.RUN_CARD} is missing"
    elif card["plan"]["digest"] != plan.digest and card["plan"]["num_shards"] >= plan.num_shards:
        yield f"{shards.RUN_CARD} is of plan {card['plan']['digest'][:12]}, the folder's plan is {plan.digest[:12]}"
    for path in sorted(published):
        if (shards.shard_index(path) or 0) >= plan.num_shards:
            yield f"{path.name} is not in the plan"
    planned = {index: {row.id for row in plan.shard(index)} for index in _failed_shards(plan.folder)}
    for entry in ledger.read_failed(plan.folder):
        if entry["id"] not in planned[entry["shard"]]:
            yield f"{ledger.FAILED}: {entry['id']} is not in the plan"


def _failed_shards(folder: Path) -> set[int]:
    return {entry["shard"] for entry in ledger.read_failed(folder)}


def _shard_problems(plan: Plan, index: int, failed: frozenset[str], sums: dict[str, str]) -> Iterator[str]:
    """Compare a published shard with the plan, line by line, and with its digest."""
    path = plan.folder / shards.shard_name(index)
    expected = [planned.id for planned in plan.shard(index) if planned.id not in failed]
    ids, digest = [], hashlib.sha256()
    with shards.open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            digest.update(line)
            try:
                row = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                yield f"{path.name}:{number}: not JSON ({error})"
                continue
            ids.append(row.get("id"))
            yield from (f"{path.name}:{number}: {problem}" for problem in _row_problems(row))
    if ids != expected:
        yield _difference(path.name, ids, expected)
    if sums.get(path.name) != digest.hexdigest():
        yield f"{path.name}: {ledger.SUMS} says {sums.get(path.name)}, the file is {digest.hexdigest()}"


def _row_problems(row: dict[str, Any]) -> Iterator[str]:
    if row.get("seed") != seed_of(str(row.get("id"))):
        yield "seed does not follow from the id"
    for name in ("prompt_token_ids", "completion_token_ids"):
        if not row.get(name):
            yield f"no {name}"
    for name in (*shards.REQUIRED, "source", "domain", "finish_reason", "sampling"):
        if row.get(name) is None:
            yield f"no {name}"


def _difference(name: str, ids: list[str], expected: list[str]) -> str:
    missing, foreign = len(set(expected) - set(ids)), len(set(ids) - set(expected))
    doubled = len(ids) - len(set(ids))
    if missing or foreign or doubled:
        return f"{name}: {missing} rows missing, {doubled} doubled, {foreign} that the plan does not know"
    return f"{name}: rows are not in plan order"

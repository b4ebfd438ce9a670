"""From a manifest to the prompts it asks for: read, filter, deduplicate, draw, and order.

Sources are read once, in manifest order. Each row that may be asked gets a hash rank; the lowest ranks are drawn, as many
as the source's allotment. A prompt that an earlier source also holds is that source's, whether drawn there or not, so growing
one source takes nothing from the rest. Memory holds some twenty bytes per row read and two hundred per row drawn; texts wait
in spool files.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import orjson

from datagen import draw
from datagen.claims import Claims, among
from datagen.hub import Hub, HuggingFaceHub, hub_rows
from datagen.limits import PromptLimit
from datagen.plan_report import PlanReport, SourceReport, notices
from datagen.preflight import check_sources
from datagen.prompts import PlannedPrompt, row_id
from datagen.shares import allotments
from datagen.sources import Candidate, SourceReader, file_rows
from manifests.schema import Manifest, Source

Progress = Callable[[str, int], None]
"""Called now and then while a source is read, with its name and the rows read so far."""

_BATCH_ROWS = 1024

_LOOK_AHEAD = 64
"""Conversations that may wait for the next shard while shorter ones fill this one."""


@dataclass(frozen=True, slots=True)
class _Row:
    rank: int
    payload: bytes
    candidate: Candidate


_Refuse = Callable[[_Row], str | None]
"""Why a row may not be planned although it can be asked; None where it may."""


class Expansion:
    """The prompts of a manifest in plan order, read from spool files as often as they are asked for."""

    def __init__(self, manifest: Manifest, draws: dict[str, draw.Draw], report: PlanReport) -> None:
        self.manifest = manifest
        self.report = report
        self._draws = draws
        self._sources = {source.name: source for source in manifest.sources}

    @property
    def prompts(self) -> Iterator[PlannedPrompt]:
        """Yield all rows in plan order."""
        for shard in self.shards():
            yield from shard

    def shards(self) -> Iterator[list[PlannedPrompt]]:
        """Yield the rows of one shard after another; a conversation is never split over two.

        A conversation that no longer fits waits for the next shard while shorter ones after it fill this one. What is
        longer than a whole shard has one to itself.
        """
        waiting: list[list[PlannedPrompt]] = []
        conversations = self._conversations()
        size = self.manifest.shard_rows
        while True:
            shard: list[PlannedPrompt] = []
            held: list[list[PlannedPrompt]] = []
            while len(shard) < size and len(held) < _LOOK_AHEAD:
                conversation = waiting.pop(0) if waiting else next(conversations, None)
                if conversation is None:
                    break
                if shard and len(shard) + len(conversation) > size:
                    held.append(conversation)
                else:
                    shard += conversation
            waiting = held + waiting
            if not shard:
                return
            yield shard

    def _conversations(self) -> Iterator[list[PlannedPrompt]]:
        names = list(self._draws)
        ranks = [self._draws[name].ranks() for name in names]
        places = [
            np.fromiter(
                (draw.place(int(rank), name, self.manifest.seed) for rank in drawn), dtype=np.uint64, count=len(drawn)
            )
            for name, drawn in zip(names, ranks, strict=True)
        ]
        owner = np.repeat(np.arange(len(names), dtype=np.uint16), [len(drawn) for drawn in ranks])
        all_ranks = np.concatenate(ranks) if ranks else np.empty(0, dtype=np.uint64)
        for at in np.argsort(np.concatenate(places), kind="stable") if len(all_ranks) else ():
            source, rank = self._sources[names[owner[at]]], int(all_ranks[at])
            payload = self._draws[source.name].payload(rank)
            for rollout in range(source.rollouts):
                yield self._rows(source, rank, payload, rollout)

    def num_rows(self, source: Source) -> int:
        """Return the generations that a source's prompts are: turns and rollouts counted each."""
        drawn = self._draws[source.name]
        ranks = drawn.ranks()
        if source.turns != "all":
            return len(ranks) * source.rollouts
        return sum(len(orjson.loads(drawn.payload(int(rank)))[0]) for rank in ranks) * source.rollouts

    def _rows(self, source: Source, rank: int, payload: bytes, rollout: int) -> list[PlannedPrompt]:
        found, tools = orjson.loads(payload)
        ids = [row_id(source.name, source.turns, payload, rollout, at) for at in range(len(found))]
        sampling = source.sampling.over(self.manifest.sampling)
        return [
            PlannedPrompt(
                id=ids[at],
                source=source.name,
                domain=source.domain,
                messages=messages,
                tools=tools,
                sampling=sampling,
                thinking=thinks(source, rank, self.manifest.seed),
                parent=None if parent is None else ids[parent],
                conversation=ids[0],
                rollout=rollout,
            )
            for at, (messages, parent) in enumerate(found)
        ]


def expand(
    manifest: Manifest,
    manifest_path: Path,
    progress: Progress | None = None,
    *,
    limit: PromptLimit | None = None,
    kept: dict[str, np.ndarray] | None = None,
    hub: Hub | None = None,
    commits: dict[str, str] | None = None,
    spool_folder: Path | None = None,
) -> Expansion:
    """Read every source and return the prompts to ask, without those of an earlier plan.

    Args:
        manifest: what to ask.
        manifest_path: the file it was read from; its folder anchors globs and relative folders.
        progress: told now and then how far reading is.
        limit: measures prompts against the target's context; None leaves lengths unchecked.
        kept: ranks already planned, ascending uint64 by source name: they count towards their source and are not drawn again.
        hub: where hub sources are; None is the Hugging Face hub.
        commits: by source name, the commit that an earlier plan read; used where the manifest pins none.
        spool_folder: where texts wait; None takes the system's temporary folder.

    Raises:
        ValueError: a source cannot be read, or has nothing that may be asked; says which and why.
    """
    hub = hub or HuggingFaceHub()
    repositories, warnings = check_sources(manifest, manifest_path.parent, hub, commits or {})
    wanted = allotments(manifest)
    kept = kept or {}
    claims = Claims(manifest.deduplicate, kept)
    draws: dict[str, draw.Draw] = {}
    reports: list[SourceReport] = []
    for source in manifest.sources:
        own = kept.get(source.name, np.empty(0, dtype=np.uint64))
        draws[source.name] = draw.Draw(max(0, wanted[source.name] - len(own)), spool_folder)
        repository = repositories.get(source.name)
        in_files = partial(file_rows, source, manifest_path.parent)
        reader = SourceReader(source, partial(hub_rows, hub, source, repository) if repository else in_files)
        refuse = _refusal(source, manifest, limit)
        report = _read_source(reader, draws[source.name], own, claims, refuse, manifest.seed, progress)
        report.wanted = wanted[source.name]
        report.commit = repository.commit if repository else None
        reports.append(report)
    expansion = Expansion(manifest, draws, PlanReport(reports, warnings))
    for source, report in zip(manifest.sources, reports, strict=True):
        report.rows = expansion.num_rows(source)
        report.expected_tokens = report.rows * min(
            manifest.expected_tokens, source.sampling.over(manifest.sampling).max_tokens
        )
        expansion.report.warnings += notices(source, report)
    return expansion


def thinks(source: Source, rank: int, seed: int) -> bool | None:
    """Return whether a prompt is asked with thinking on; where a source gives a fraction, a hash of the prompt decides."""
    if source.thinking is None or isinstance(source.thinking, bool):
        return source.thinking
    return draw.fraction(rank, "thinking", seed) < source.thinking


def _read_source(
    reader: SourceReader,
    drawn: draw.Draw,
    own: np.ndarray,
    claims: Claims,
    refuse: _Refuse,
    seed: int,
    progress: Progress | None,
) -> SourceReport:
    """Offer a source's rows to its draw, and count what became of each."""
    name = reader.source.name
    seen = array("Q")
    duplicates: Counter[str] = Counter()
    for batch in _batches(reader, seed):
        ranks = np.array([row.rank for row in batch], dtype=np.uint64)
        planned_before = among(ranks, own)
        for row, owner, planned in zip(batch, claims.owners(ranks), planned_before, strict=True):
            if owner is not None and owner != name:
                duplicates[owner] += 1
            elif not planned and (reason := refuse(row)):
                reader.problems.add(reason, row.candidate.where)
            else:
                seen.append(row.rank)
                if not planned:
                    drawn.offer(row.rank, row.payload)
        if progress is not None:
            progress(name, len(seen) + duplicates.total() + reader.problems.counts.total())
    ranks = np.unique(np.frombuffer(seen, dtype=np.uint64)) if seen else np.empty(0, dtype=np.uint64)
    claims.add(name, ranks)
    return SourceReport(
        name=name,
        domain=reader.source.domain,
        format=reader.format if reader.column is None else f"{reader.format} ({reader.column})",
        wanted=0,
        found=len(seen) + duplicates.total() + reader.problems.counts.total(),
        dropped=dict(reader.problems.counts.most_common()),
        first_dropped=dict(reader.problems.first),
        repeats=len(seen) - len(ranks),
        duplicate_of=dict(duplicates.most_common()),
        eligible=len(ranks),
        planned=len(own) + len(drawn.ranks()),
    )


def _batches(reader: SourceReader, seed: int) -> Iterator[list[_Row]]:
    """Yield ranked rows some at a time, so that claims are looked up for many at once."""
    rows = (row for candidate in reader.candidates() if (row := _ranked(candidate, reader, seed)) is not None)
    while batch := list(itertools.islice(rows, _BATCH_ROWS)):
        yield batch


def _ranked(candidate: Candidate, reader: SourceReader, seed: int) -> _Row | None:
    try:
        payload = orjson.dumps([[(step.messages, step.parent) for step in candidate.steps], candidate.tools])
    except TypeError as error:  # Python's JSON takes half a surrogate pair and an integer of 65 bits; orjson does not
        reader.problems.add("not_utf8" if "surrogates" in str(error) else "not_plain_json", candidate.where)
        return None
    return _Row(draw.rank(payload, seed), payload, candidate)


def _refusal(source: Source, manifest: Manifest, limit: PromptLimit | None) -> _Refuse:
    """Return the check of a source's rows that needs the target's tokenizer."""
    if limit is None:
        return lambda row: None
    longest = limit.longest_prompt(source, source.sampling.over(manifest.sampling))

    def refuse(row: _Row) -> str | None:
        return limit.exceeded(
            row.candidate.steps[0].messages,
            row.candidate.tools,
            row.payload,
            longest,
            thinks(source, row.rank, manifest.seed),
        )

    return refuse

"""The shards being answered: which of their rows can be asked, what has landed, which are complete, and how many rows that makes.

Between the run, which asks, and the ledger, which lasts. Rows come out once each; a turn whose earlier turn is pending
comes out when that one is answered. Journals are made durable and complete shards published in threads, so that the
requests never wait for the disk.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator

from datagen.admission import Lengths, Row
from datagen.ledger import Failure, Ledger, OpenShard


class OpenShards:
    """One rank's shards, from the first that is not finished to the last."""

    def __init__(self, ledger: Ledger, retry_failed: bool) -> None:
        self._ledger = ledger
        self._retry_failed = retry_failed
        self._to_open = list(reversed(ledger.unfinished()))
        self._open: dict[int, OpenShard] = {}
        self._waiting: dict[str, list[Row]] = defaultdict(list)
        """Rows that wait for the answer of the row with this id."""
        self._complete: asyncio.Queue[OpenShard] = asyncio.Queue()
        self._publishing: asyncio.Future[None] | None = None
        self._failing: set[int] = set()
        """Shards with failures that `failed.jsonl` does not show yet."""
        self._count_finished()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[OpenShard]:
        return iter(list(self._open.values()))

    def __getitem__(self, index: int) -> OpenShard:
        return self._open[index]

    @property
    def num_unopened(self) -> int:
        """Shards that are still to be opened."""
        return len(self._to_open)

    @property
    def num_published(self) -> int:
        """Shards that lie in their place."""
        return self.num_shards - len(self._to_open) - len(self._open)

    @property
    def num_unpublished(self) -> int:
        """Complete shards that wait for the disk."""
        return self._complete.qsize()

    @property
    def num_done(self) -> int:
        """Rows of this rank that are answered."""
        return self._finished_done + sum(len(shard.done) for shard in self._open.values())

    @property
    def num_failed(self) -> int:
        """Rows of this rank that cannot be answered."""
        return self._finished_failed + sum(len(shard.failed) for shard in self._open.values())

    @property
    def journal_bytes(self) -> int:
        """What the open shards need on the disk once more to be published."""
        return sum(shard.journal.num_bytes for shard in self._open.values())

    def open_next(self) -> tuple[list[Row], list[tuple[Row, Failure]]]:
        """Open the next shard; return its rows that can be asked now, and those whose earlier turn has failed."""
        shard = self._ledger.open(self._to_open.pop(), self._retry_failed)
        self._open[shard.index] = shard
        rows = _pending_rows(shard)
        unanswered = {row.planned.id for row in rows}
        failed = {shard.rows[position].id for position in shard.failed}
        askable, orphaned = [], []
        for row in rows:
            parent = row.planned.parent
            if parent in failed:
                orphaned.append((row, parent_failed(parent)))
                failed.add(row.planned.id)
            elif parent in unanswered:
                self._waiting[parent].append(row)
            else:
                askable.append(row)
        self._note_complete(shard)
        return askable, orphaned

    def record(self, row: Row, line: bytes) -> None:
        """Journal an answered row; `line` is the row's JSON without its newline."""
        shard = self._open[row.shard]
        shard.record(row.position, line)
        self._note_complete(shard)

    def fail(self, row: Row, failure: Failure) -> None:
        """Journal a row that cannot be answered."""
        shard = self._open[row.shard]
        shard.fail(row.position, failure)
        self._failing.add(shard.index)
        self._note_complete(shard)

    def waiting_for(self, row: Row) -> list[Row]:
        """Return the turns that waited for this row, and forget them."""
        return self._waiting.pop(row.planned.id, [])

    async def publish_complete(self, published: Callable[[], None]) -> None:
        """Publish shards as they become complete, for ever; call `published` after each."""
        while True:
            shard = await self._complete.get()
            self._publishing = asyncio.ensure_future(asyncio.to_thread(self._ledger.publish, shard))
            await asyncio.shield(self._publishing)
            self._finished_done += len(shard.done)
            self._finished_failed += len(shard.failed)
            del self._open[shard.index]
            published()

    async def sync(self) -> None:
        """Make what was journalled so far survive a power cut, and `failed.jsonl` say what the journals say."""
        failing, self._failing = self._failing, set()
        for shard in self:
            await asyncio.to_thread(shard.sync)
            if shard.index in failing and shard.index in self._open:
                await asyncio.to_thread(self._ledger.write_failures, shard)

    async def close(self) -> None:
        """Wait for a publication under way, and close the journals."""
        if self._publishing is not None:
            await asyncio.wait([self._publishing])
        for shard in self:
            shard.close()

    def tokens_left(self, lengths: Lengths, mean: float) -> float:
        """Return the completion tokens expected of the pending rows.

        Args:
            lengths: what was observed of the sources, for rows of open shards.
            mean: tokens expected of a row of the others, whose sources are not known before they are opened.
        """
        left = mean * sum(self._ledger.plan.shards[index].num_rows for index in self._to_open)
        for shard in self._open.values():
            for position in shard.pending:
                planned = shard.rows[position]
                left += lengths.expected(planned.source, planned.sampling.max_tokens)
        return left

    def _note_complete(self, shard: OpenShard) -> None:
        if shard.is_complete:
            self._complete.put_nowait(shard)

    def _count_finished(self) -> None:
        """Count this rank's rows in finished shards; those of open ones are counted as they stand."""
        plan, ledger = self._ledger.plan, self._ledger
        mine = range(ledger.rank, plan.num_shards, ledger.world)
        finished = set(mine) - set(self._to_open)
        self.num_shards = len(mine)
        self.num_rows = sum(plan.shards[index].num_rows for index in mine)
        self._finished_failed = ledger.num_failed_in(finished)
        self._finished_done = sum(plan.shards[index].num_rows for index in finished) - self._finished_failed


def parent_failed(parent: str | None) -> Failure:
    """Return why a turn cannot be asked whose earlier turn failed."""
    return Failure("parent", f"the turn before it, {parent}, has no answer", 0)


def _pending_rows(shard: OpenShard) -> list[Row]:
    """Return the rows without an answer in plan order, each with the number of pending turns that hang on it."""
    turns_left: dict[str | None, int] = defaultdict(int)
    rows = []
    for position in reversed(shard.pending):
        planned = shard.rows[position]
        rows.append(Row(shard.index, position, planned, turns_left[planned.id] + 1))
        turns_left[planned.parent] = max(turns_left[planned.parent], rows[-1].turns_left)
    return rows[::-1]

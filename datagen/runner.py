"""The run: planned rows go to the engine, answers to the journal, complete shards to their place.

One task per request in flight; admission is continuous over the open shards, so there is no batch to wait for. Everything
that decides lives in `admission`, everything that lasts in `ledger`; this file is the loop between them and the engine,
and what it does about faults:

- the engine failed in passing: ask again after a backoff; a row that keeps failing while others succeed is recorded as
  failed, but while nothing succeeds it is the engine that is at fault, and the row stays pending;
- the engine asks for less: fewer requests in flight, the row stays pending;
- the row cannot be answered: recorded as failed;
- the engine is gone: admission stops, the engine is probed, every row in flight is pending again.

A run ends complete, or it stops with everything that landed in the journal and says what is pending.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from collections import defaultdict
from typing import Any

from datagen import rendering, shards
from datagen.admission import Deadlines, Lengths, Limit, Queue, Row, backoff_s
from datagen.answers import PromptRenderer, make_row, seed_of
from datagen.engines import (
    CapacityError,
    Engine,
    EngineDownError,
    Generation,
    Request,
    RowError,
    TransientError,
)
from datagen.health import Health
from datagen.ledger import Failure, Ledger, OpenShard
from datagen.outcome import End, Outcome, RunOptions
from datagen.progress import Snapshot, Tally

_TICK_S = 1.0
_CLOSING_S = 5.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class Run:
    """One rank's run. Make it, `await run()`, and read the outcome; `stop` may be called at any time."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        renderer: PromptRenderer,
        options: RunOptions,
    ) -> None:
        self.ledger = ledger
        self.engine = engine
        self.renderer = renderer
        self.options = options
        self.lengths = Lengths(ledger.plan.manifest.expected_tokens)
        self.tally = Tally(self.lengths)
        self.limit = Limit(engine.capacity)
        self.deadlines = Deadlines(options.floor_tokens_per_s, options.allowance_s)
        self._queue = Queue(self.lengths)
        self._to_open = list(reversed(ledger.unfinished()))
        self._open: dict[int, OpenShard] = {}
        self._children: dict[str, list[Row]] = defaultdict(list)
        """Rows that wait for the answer of the row with this id."""
        self._in_flight: dict[asyncio.Task[None], tuple[Row, float]] = {}
        self._delayed: set[asyncio.TimerHandle] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._complete: asyncio.Queue[OpenShard] = asyncio.Queue()
        self._publishing: asyncio.Future[None] | None = None
        self._wake = asyncio.Event()
        self._sync_now = asyncio.Event()
        self._num_unsynced = 0
        self._failing: set[int] = set()
        """Open shards with failures that `failed.jsonl` does not show yet."""
        self._end: tuple[End, str] | None = None
        self._crash: BaseException | None = None
        self._health = Health(options.patience_s, last_success=time.monotonic())
        self._count_shards()

    def stop(self, end: End = "interrupted", message: str = "") -> None:
        """End the run: nothing more is admitted, what has landed stays. The first reason counts."""
        self._end = self._end or (end, message)
        self._wake.set()

    async def run(self) -> Outcome:
        """Answer every pending row of this rank, or as many as can be.

        Raises:
            ValueError: the folder belongs to another plan.
            OSError: the disk fails for another reason than being full.
        """
        for work in (self._publish_complete(), self._sync_journals(), self._watch()):
            self._spawn(work)
        try:
            while self._end is None and (self._to_open or self._open):
                self._open_shards()
                self._admit()
                await self._wake.wait()
                self._wake.clear()
                if self._crash is not None:
                    raise self._crash
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            self.stop("disk low", f"no room left: {error}")
        finally:
            await self._close()
        self.stop("complete")
        assert self._end is not None
        end, message = self._end
        view = self.snapshot()
        return Outcome(end, message, view.num_done, view.num_failed, view.num_pending, self.tally)

    def snapshot(self) -> Snapshot:
        """Return where the run stands."""
        now = time.monotonic()
        done = self._finished_done + sum(len(shard.done) for shard in self._open.values())
        failed = self._finished_failed + sum(len(shard.failed) for shard in self._open.values())
        state = self._health.state(now)
        return Snapshot(
            num_rows=self._num_rows,
            num_done=done,
            num_failed=failed,
            num_in_flight=len(self._in_flight),
            limit=self.limit.current,
            num_open_shards=len(self._open),
            num_published=self._num_shards - len(self._to_open) - len(self._open),
            num_shards=self._num_shards,
            tokens_left=self._tokens_left(),
            oldest_s=max((now - started for _, started in self._in_flight.values()), default=0.0),
            disk_free_bytes=shutil.disk_usage(self.ledger.folder).free,
            state=self._end[0] if self._end else state,
            trouble="" if state == "running" else self._health.trouble,
        )

    # -- admission

    def _open_shards(self) -> None:
        while self._to_open and (len(self._open) < self.options.open_shards or self._could_admit_more()):
            index = self._to_open.pop()
            shard = self.ledger.open(index, self.options.retry_failed)
            self._open[index] = shard
            self._enqueue(shard)
            self._check_complete(shard)

    def _could_admit_more(self) -> bool:
        """Whether the open shards are too small to keep the engine busy."""
        return len(self._queue) + len(self._in_flight) + len(self._delayed) < self.limit.current

    def _enqueue(self, shard: OpenShard) -> None:
        """Queue the rows that can be asked; turns whose earlier turn is pending wait for it."""
        turns_left: dict[str | None, int] = defaultdict(int)
        rows = {}
        for position in reversed(shard.pending):
            planned = shard.rows[position]
            rows[position] = Row(shard.index, position, planned, turns_left[planned.id] + 1)
            turns_left[planned.parent] = max(turns_left[planned.parent], rows[position].turns_left)
        unanswered = {row.planned.id for row in rows.values()}
        failed = {shard.rows[position].id for position in shard.failed}
        for position in sorted(rows):
            parent = rows[position].planned.parent
            if parent in failed:
                self._fail(rows[position], _parent_failed(parent))
                failed.add(rows[position].planned.id)
            elif parent in unanswered:
                self._children[parent].append(rows[position])
            else:
                self._queue.push(rows[position])

    def _admit(self) -> None:
        self.limit.most = self.engine.capacity
        if self._end or not self._health.admits(time.monotonic()):
            return
        while len(self._queue) and len(self._in_flight) < self.limit.current:
            row = self._queue.pop(longest_first=not self._to_open)
            task = asyncio.create_task(self._ask(row))
            self._in_flight[task] = (row, time.monotonic())
            task.add_done_callback(self._returned)

    def _returned(self, task: asyncio.Task[None]) -> None:
        del self._in_flight[task]
        self._note_crash(task)

    # -- one request

    async def _ask(self, row: Row) -> None:
        started = time.monotonic()
        try:
            messages, request = self._request(row)
            async with asyncio.timeout(self.deadlines.seconds(request.sampling.max_tokens)):
                generation = await self.engine.generate(request)
        except TimeoutError:
            self._failed_in_passing(row, started, f"no answer within {time.monotonic() - started:.0f} s")
        except TransientError as error:
            self._failed_in_passing(row, started, str(error))
        except CapacityError as error:
            self._refused_for_now(row, started, error)
        except EngineDownError as error:
            self._lost_engine(row, str(error))
        except RowError as error:
            self._fail(row, Failure("row", str(error), row.attempts + 1))
        else:
            self._land(row, messages, request, generation, time.monotonic() - started)

    def _request(self, row: Row) -> tuple[list[dict[str, Any]], Request]:
        """Render a row's prompt. Raises RowError where the template refuses it or the context has no room for an answer."""
        planned = row.planned
        shard = self._open[row.shard]
        answers = {} if planned.parent is None else {planned.parent: shard.answer_to(planned.parent)}
        messages = rendering.conversation(planned, answers)
        try:
            prompt = self.renderer.render(messages, planned.tools, planned.thinking)
        except ValueError as error:
            raise RowError(str(error)) from error
        room = self.renderer.context_length - len(prompt)
        if room < 1:
            raise RowError(f"prompt of {len(prompt)} tokens fills the context of {self.renderer.context_length}")
        sampling = planned.sampling
        if sampling.max_tokens > room:
            sampling = sampling.model_copy(update={"max_tokens": room})
        return messages, Request(planned.id, prompt, sampling, seed_of(planned.id), planned.conversation)

    def _land(
        self, row: Row, messages: list[dict[str, Any]], request: Request, generation: Generation, took_s: float
    ) -> None:
        answer = make_row(row.planned, messages, request, generation, self.renderer)
        shard = self._open[row.shard]
        shard.record(row.position, shards.encode_row(answer).rstrip(b"\n"))
        self._health.succeeded(time.monotonic())
        self.limit.succeeded()
        num_tokens = len(generation.token_ids)
        self.deadlines.observe(num_tokens, took_s)
        self.tally.landed(
            row.planned.source,
            len(request.prompt_token_ids),
            num_tokens,
            generation.finish_reason,
            answer.get("flags", []),
        )
        for child in self._children.pop(row.planned.id, []):
            self._queue.push(child)
        self._changed(shard)

    # -- faults

    def _fail(self, row: Row, failure: Failure) -> None:
        shard = self._open[row.shard]
        shard.fail(row.position, failure)
        self._failing.add(shard.index)
        self.tally.failed(row.planned.source)
        self.tally.faults[failure.reason] += 1
        for child in self._children.pop(row.planned.id, []):
            self._fail(child, _parent_failed(row.planned.id))
        self._changed(shard)

    def _failed_in_passing(self, row: Row, started: float, message: str) -> None:
        self.tally.faults["transient"] += 1
        self._health.fault(time.monotonic(), message)
        row.attempts += 1
        if row.attempts < self.options.attempts:
            self._later(
                row, backoff_s(row.planned.id, row.attempts, self.options.backoff_s, self.options.longest_backoff_s)
            )
        elif self._health.last_success > started:
            self._fail(row, Failure("transient", message, row.attempts))
        else:
            self._spawn(self._judge(row, message))

    async def _judge(self, row: Row, message: str) -> None:
        """Decide whether a row or the engine is at fault, where no other row succeeded meanwhile."""
        if await self.engine.healthy():
            self._fail(row, Failure("transient", message, row.attempts))
        else:
            row.attempts -= 1
            self._lost_engine(row, message)

    def _refused_for_now(self, row: Row, started: float, error: CapacityError) -> None:
        now = time.monotonic()
        self.tally.faults["capacity"] += 1
        self._health.fault(now, str(error))
        self.limit.refused(started, now)
        wait = backoff_s(row.planned.id, 1, self.options.backoff_s, self.options.longest_backoff_s)
        if error.retry_after_s is not None:
            wait = max(wait, error.retry_after_s)
            self._health.pause(now + error.retry_after_s)
        self._later(row, wait)

    def _lost_engine(self, row: Row, message: str) -> None:
        self.tally.faults["engine down"] += 1
        self._health.fault(time.monotonic(), message)
        self._queue.push(row)
        if not self._health.is_down:
            self._health.is_down = True
            self._spawn(self._probe(message))
        self._wake.set()

    async def _probe(self, message: str) -> None:
        """Ask the engine until it is back; give up when patience ends, or when it says that it never will be."""
        wait = self.options.backoff_s
        try:
            while not await self.engine.healthy():
                if self._is_hopeless():
                    return self.stop("engine down", message)
                await asyncio.sleep(wait)
                wait = min(wait * 2, self.options.longest_backoff_s)
        except EngineDownError as error:
            return self.stop("engine down", str(error))
        self._health.is_down = False
        self._wake.set()

    def _is_hopeless(self) -> bool:
        return self._health.is_hopeless(time.monotonic(), (started for _, started in self._in_flight.values()))

    def _later(self, row: Row, seconds: float) -> None:
        def again() -> None:
            self._delayed.discard(handle)
            self._queue.push(row)
            self._wake.set()

        handle = asyncio.get_running_loop().call_later(seconds, again)
        self._delayed.add(handle)
        self._wake.set()

    # -- what runs beside the requests

    def _changed(self, shard: OpenShard) -> None:
        self._num_unsynced += 1
        if self._num_unsynced >= self.options.sync_rows:
            self._sync_now.set()
        self._check_complete(shard)
        self._wake.set()

    def _check_complete(self, shard: OpenShard) -> None:
        if shard.is_complete:
            self._complete.put_nowait(shard)

    async def _publish_complete(self) -> None:
        while True:
            shard = await self._complete.get()
            self._publishing = asyncio.ensure_future(asyncio.to_thread(self.ledger.publish, shard))
            await asyncio.shield(self._publishing)
            self._finished_done += len(shard.done)
            self._finished_failed += len(shard.failed)
            del self._open[shard.index]
            self._wake.set()

    async def _sync_journals(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self.options.sync_s):
                    await self._sync_now.wait()
            except TimeoutError:
                pass
            self._sync_now.clear()
            self._num_unsynced = 0
            failing, self._failing = self._failing, set()
            for shard in list(self._open.values()):
                await asyncio.to_thread(shard.sync)
                if shard.index in failing and shard.index in self._open:
                    await asyncio.to_thread(self.ledger.write_failures, shard)

    async def _watch(self) -> None:
        """Stop the run when it goes bad, the disk runs low, or the engine only ever fails."""
        options = self.options
        while True:
            needed = options.disk_reserve_mib * 2**20 + sum(shard.journal.num_bytes for shard in self._open.values())
            free = shutil.disk_usage(self.ledger.folder).free
            seen = self.tally.num_done + self.tally.num_failed
            if free < needed:
                self.stop("disk low", f"{free / 2**20:,.0f} MiB free, {needed / 2**20:,.0f} MiB needed")
            elif seen >= options.bad_after_rows and self.tally.bad_frac > options.max_bad_frac:
                self.stop("too many bad answers", _bad(self.tally))
            elif self._is_hopeless():
                self.stop("engine down", f"nothing but faults for {options.patience_s:.0f} s")
            await asyncio.sleep(_TICK_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        task.add_done_callback(self._note_crash)

    def _note_crash(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._crash = self._crash or task.exception()
        self._wake.set()

    async def _close(self) -> None:
        for handle in self._delayed:
            handle.cancel()
        tasks = [*self._in_flight, *self._background]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_S)
        if self._publishing is not None:
            await asyncio.wait([self._publishing])
        for shard in self._open.values():
            shard.close()

    # -- counting

    def _count_shards(self) -> None:
        """Count this rank's rows in finished shards; those of open ones are counted as they are opened."""
        plan, ledger = self.ledger.plan, self.ledger
        mine = range(ledger.rank, plan.num_shards, ledger.world)
        unfinished = set(self._to_open)
        self._num_shards = len(mine)
        self._num_rows = sum(plan.shards[index].num_rows for index in mine)
        finished = sum(plan.shards[index].num_rows for index in mine if index not in unfinished)
        self._finished_failed = ledger.num_failed_in(set(mine) - unfinished)
        self._finished_done = finished - self._finished_failed

    def _tokens_left(self) -> float:
        """Return the completion tokens expected of the pending rows, by what was observed of their sources."""
        unopened = sum(self.ledger.plan.shards[index].num_rows for index in self._to_open)
        seen = self.tally.num_done
        mean = self.tally.completion_tokens / seen if seen else self.lengths.default
        left = unopened * mean
        for shard in self._open.values():
            for position in shard.pending:
                planned = shard.rows[position]
                left += self.lengths.expected(planned.source, planned.sampling.max_tokens)
        return left


def _parent_failed(parent: str | None) -> Failure:
    return Failure("parent", f"the turn before it, {parent}, has no answer", 0)


def _bad(tally: Tally) -> str:
    flags = ", ".join(f"{name} {num}" for name, num in sorted(tally.flags.items()))
    return f"{tally.bad_frac:.0%} of {tally.num_done + tally.num_failed} rows: {flags}; failed {tally.num_failed}"

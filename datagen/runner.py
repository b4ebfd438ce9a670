"""The run: planned rows go to the engine, answers to the journal, complete shards to their place.

One task per request in flight; admission is continuous over the open shards, so there is no batch to wait for. Everything
that decides lives in `admission`, everything that lasts in `ledger`, what is between in `open_shards`; this file is the
loop from there to the engine and back, and what it does about faults:

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
from collections.abc import Coroutine
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
from datagen.ledger import Failure, Ledger
from datagen.open_shards import OpenShards, parent_failed
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
        self._shards = OpenShards(ledger, options.retry_failed)
        self._in_flight: dict[asyncio.Task[None], tuple[Row, float]] = {}
        self._delayed: set[asyncio.TimerHandle] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._sync_now = asyncio.Event()
        self._num_unsynced = 0
        self._end: tuple[End, str] | None = None
        self._crash: BaseException | None = None
        self._health = Health(options.patience_s, last_success=time.monotonic())

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
        for work in (self._shards.publish_complete(self._wake.set), self._sync_journals(), self._watch()):
            self._spawn(work)
        try:
            while self._end is None and (self._shards.num_unopened or len(self._shards)):
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
        state = self._health.state(now)
        return Snapshot(
            num_rows=self._shards.num_rows,
            num_done=self._shards.num_done,
            num_failed=self._shards.num_failed,
            num_in_flight=len(self._in_flight),
            limit=self.limit.current,
            num_open_shards=len(self._shards),
            num_published=self._shards.num_published,
            num_shards=self._shards.num_shards,
            tokens_left=self._shards.tokens_left(self.lengths, self._mean_tokens()),
            oldest_s=max((now - started for _, started in self._in_flight.values()), default=0.0),
            disk_free_bytes=shutil.disk_usage(self.ledger.folder).free,
            state=self._end[0] if self._end else state,
            trouble="" if state == "running" else self._health.trouble,
        )

    # -- admission

    def _open_shards(self) -> None:
        while self._shards.num_unopened and self._has_room_for_a_shard():
            askable, orphaned = self._shards.open_next()
            for row in askable:
                self._queue.push(row)
            for row, failure in orphaned:
                self._fail(row, failure)

    def _has_room_for_a_shard(self) -> bool:
        """Whether to open another: up to `open_shards`, more where these are too small to keep the engine busy.

        Never while a disk slower than the engine leaves as many to be published: memory stays bounded, the engine waits.
        """
        if self._shards.num_unpublished >= self.options.open_shards:
            return False
        num_askable = len(self._queue) + len(self._in_flight) + len(self._delayed)
        return len(self._shards) < self.options.open_shards or num_askable < self.limit.current

    def _admit(self) -> None:
        self.limit.most = self.engine.capacity
        if self._end or not self._health.admits(time.monotonic()):
            return
        while len(self._queue) and len(self._in_flight) < self.limit.current:
            row = self._queue.pop(longest_first=not self._shards.num_unopened)
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
        parent = planned.parent
        answers = {} if parent is None else {parent: self._shards[row.shard].answer_to(parent)}
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
        self._shards.record(row, shards.encode_row(answer).rstrip(b"\n"))
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
        for child in self._shards.waiting_for(row):
            self._queue.push(child)
        self._changed()

    # -- faults

    def _fail(self, row: Row, failure: Failure) -> None:
        self._shards.fail(row, failure)
        self.tally.failed(row.planned.source)
        self.tally.faults[failure.reason] += 1
        for child in self._shards.waiting_for(row):
            self._fail(child, parent_failed(row.planned.id))
        self._changed()

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

    def _changed(self) -> None:
        self._num_unsynced += 1
        if self._num_unsynced >= self.options.sync_rows:
            self._sync_now.set()
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
            await self._shards.sync()

    async def _watch(self) -> None:
        """Stop the run when it goes bad, the disk runs low, or the engine only ever fails."""
        options = self.options
        while True:
            needed = options.disk_reserve_mib * 2**20 + self._shards.journal_bytes
            free = shutil.disk_usage(self.ledger.folder).free
            seen = self.tally.num_done + self.tally.num_failed
            if free < needed:
                self.stop("disk low", f"{free / 2**20:,.0f} MiB free, {needed / 2**20:,.0f} MiB needed")
            elif seen >= options.bad_after_rows and self.tally.bad_frac > options.max_bad_frac:
                self.stop("too many bad answers", _bad(self.tally))
            elif self._is_hopeless():
                self.stop("engine down", f"nothing but faults for {options.patience_s:.0f} s")
            await asyncio.sleep(_TICK_S)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
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
        await self._shards.close()

    def _mean_tokens(self) -> float:
        return self.tally.completion_tokens / self.tally.num_done if self.tally.num_done else self.lengths.default


def _bad(tally: Tally) -> str:
    flags = ", ".join(f"{name} {num}" for name, num in sorted(tally.flags.items()))
    return f"{tally.bad_frac:.0%} of {tally.num_done + tally.num_failed} rows: {flags}; failed {tally.num_failed}"

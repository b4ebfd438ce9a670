"""Servers that misbehave: every run completes, or stops in bounded time with every unanswered row pending."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from datagen import ledger, shards
from datagen.engines.http import HttpEngine, HttpOptions
from datagen.ledger import Ledger
from datagen.outcome import Outcome, RunOptions
from datagen.plan import Plan
from datagen.runner import Run
from tests.datagen.fake_server import HARMLESS, MODES, FakeServer, FakeSglang
from tests.datagen.small_plans import QUICK, ByteRenderer, make_plan, published

pytestmark = pytest.mark.faults

HASTY = QUICK.model_copy(update={"allowance_s": 0.3, "floor_tokens_per_s": 1000.0, "patience_s": 0.6, "attempts": 3})
"""Deadlines of about 0.4 s for 64 tokens."""

PATIENT = HASTY.model_copy(update={"patience_s": 30.0, "attempts": 20})
"""For faults that pass: a busy machine may need more than one attempt."""

NUM_ROWS = 30


def in_table(mode: str, run: Callable[[], Outcome]) -> Outcome:
    """Run, and print the run's line of the fault table; `pytest -s` shows it."""
    begun = time.monotonic()
    outcome = run()
    rows = f"{outcome.num_done} done, {outcome.num_failed} failed, {outcome.num_pending} pending"
    print(f"| {mode} | {outcome.end}: {rows} | {time.monotonic() - begun:.1f} s |")
    return outcome


def test_an_answer_over_http_is_the_row_that_the_server_gave(tmp_path: Path) -> None:
    outcome = serve(tmp_path, FakeServer())
    assert (outcome.end, outcome.num_done) == ("complete", NUM_ROWS)
    row = next(shards.read_rows(tmp_path / "completions_000000.jsonl"))
    assert row["completion"].count(" ") == len(row["completion_token_ids"])
    assert bytes(row["prompt_token_ids"]).decode() == row["messages"][0]["content"]


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_that_passes_costs_nothing(mode: str, tmp_path: Path) -> None:
    serve(tmp_path / "calm", FakeServer())
    rough = FakeServer(mode, times=1)
    outcome = in_table(f"{mode}, in passing", lambda: serve(tmp_path / "rough", rough, PATIENT))
    assert (outcome.end, outcome.num_failed, outcome.num_pending) == ("complete", 0, 0)
    assert published(tmp_path / "rough") == published(tmp_path / "calm")


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_that_stays_stops_the_run_with_every_row_pending(mode: str, tmp_path: Path) -> None:
    server = FakeServer(mode, probes=True)
    outcome = in_table(f"{mode}, for good", lambda: serve(tmp_path, server, breaks_after_start=True))
    assert outcome.end == "engine down"
    assert (outcome.num_done, outcome.num_failed, outcome.num_pending) == (0, 0, NUM_ROWS)
    assert ledger.read_failed(tmp_path) == []


@pytest.mark.parametrize("mode", HARMLESS)
def test_odd_answers_are_answers(mode: str, tmp_path: Path) -> None:
    outcome = in_table(f"{mode}, always", lambda: serve(tmp_path, FakeServer(mode)))
    assert (outcome.end, outcome.num_done) == ("complete", NUM_ROWS)
    row = next(shards.read_rows(tmp_path / "completions_000000.jsonl"))
    assert row["reasoning"] == ("because" if mode.startswith("reasoning") else None)
    assert row.get("flags") == (["empty"] if mode == "empty" else None)


@pytest.mark.parametrize("mode", ["", "abort"])
def test_sglang_is_spoken_to_in_its_own_way_and_gives_the_same_rows(mode: str, tmp_path: Path) -> None:
    serve(tmp_path / "vllm", FakeServer(), top_k=0)
    outcome = serve(tmp_path / "sglang", FakeSglang(mode), PATIENT, top_k=0)
    assert (outcome.end, outcome.num_failed, outcome.num_pending) == ("complete", 0, 0)
    assert published(tmp_path / "sglang") == published(tmp_path / "vllm")


def test_a_row_that_alone_keeps_failing_is_recorded_and_the_rest_is_answered(tmp_path: Path) -> None:
    server = FakeServer("500")
    plan = make_plan(tmp_path, NUM_ROWS)
    poison = tuple(b"question 7, turn 0")
    server.times = 0
    original = server._complete

    async def complete(request: Any) -> Any:
        asked = await request.json()
        server.times = 1 << 30 if tuple(asked["prompt"]) == poison else 0
        return await original(request)

    server._complete = complete  # type: ignore[method-assign]  # one prompt among many is poison
    outcome = run_against(plan, [server])
    assert (outcome.end, outcome.num_done, outcome.num_failed) == ("complete", NUM_ROWS - 1, 1)
    (entry,) = ledger.read_failed(tmp_path)
    assert (entry["reason"], entry["attempts"]) == ("transient", HASTY.attempts)
    assert "HTTP 500" in entry["message"]


def test_a_prompt_that_the_server_refuses_is_recorded_at_once(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 3, max_tokens=64)
    server = FakeServer()

    async def refuse(request: Any) -> Any:
        from aiohttp import web

        return web.Response(status=400, text="prompt contains an invalid token")

    async def go() -> Outcome:
        async with server:
            engine = HttpEngine((server.url,), "served", 4096, HttpOptions())
            await engine.start()
            run = Run(Ledger(plan, tmp_path), engine, ByteRenderer(), HASTY)
            await server.down()
            server._complete = refuse  # type: ignore[method-assign]  # from now on it refuses
            await server.up()
            try:
                return await run.run()
            finally:
                await engine.close()

    ledger.hidden(tmp_path)
    outcome = bounded(go())
    assert (outcome.end, outcome.num_failed) == ("complete", 3)
    assert {entry["reason"] for entry in ledger.read_failed(tmp_path)} == {"row"}


@pytest.mark.parametrize(
    ("down_s", "options"), [(0.5, PATIENT), pytest.param(60.0, RunOptions(), marks=pytest.mark.slow)]
)
def test_a_server_that_dies_and_comes_back_is_waited_for(down_s: float, options: RunOptions, tmp_path: Path) -> None:
    serve(tmp_path / "calm", FakeServer())
    plan = make_plan(tmp_path / "rough", NUM_ROWS)
    server = FakeServer()

    async def die_for_a_while() -> None:
        while server.num_answered < 5:
            await asyncio.sleep(0.001)
        await server.down()
        await asyncio.sleep(down_s)
        await server.up()

    outcome = in_table(
        f"dies, comes back after {down_s:g} s",
        lambda: run_against(plan, [server], options, concurrency=2, meanwhile=die_for_a_while, bound_s=2 * down_s + 60),
    )
    assert (outcome.end, outcome.num_failed) == ("complete", 0)
    assert outcome.tally.faults["engine down"] > 0
    assert published(tmp_path / "rough") == published(tmp_path / "calm")


def test_one_of_two_servers_dies_and_nothing_is_lost(tmp_path: Path) -> None:
    serve(tmp_path / "calm", FakeServer())
    plan = make_plan(tmp_path / "rough", NUM_ROWS)
    first, second = FakeServer(), FakeServer()

    async def die() -> None:
        while first.num_answered < 3 or second.num_answered < 3:
            await asyncio.sleep(0.001)
        await first.down()

    outcome = run_against(plan, [first, second], PATIENT, concurrency=2, meanwhile=die)
    assert (outcome.end, outcome.num_failed) == ("complete", 0)
    assert published(tmp_path / "rough") == published(tmp_path / "calm")


def test_the_turns_of_a_conversation_go_to_one_server(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 8, turns=3, shard_rows=6)
    servers = [FakeServer(), FakeServer()]
    assert run_against(plan, servers, concurrency=4).end == "complete"
    for number in range(8):
        opening = f"question {number}, turn 0".encode()
        at = [server for server in servers if any(bytes(prompt).startswith(opening) for prompt in server.seen)]
        assert len(at) == 1
    assert all(server.num_answered > 1 for server in servers)


def test_a_server_without_token_ids_is_refused_before_any_row_is_asked() -> None:
    with pytest.raises(ValueError, match="does not return token ids"):
        bounded(start_only(FakeServer("no token ids", probes=True)))


def test_a_server_with_a_shorter_context_is_refused() -> None:
    with pytest.raises(ValueError, match="takes 128 tokens, the target 4096"):
        bounded(start_only(FakeServer(max_model_len=128)))


def test_no_server_at_all_is_said_in_one_line() -> None:
    async def go() -> None:
        engine = HttpEngine(("http://127.0.0.1:9",), "served", 4096, HttpOptions())
        try:
            await engine.start()
        finally:
            await engine.close()

    with pytest.raises(ValueError, match="no server answers: http://127.0.0.1:9"):
        bounded(go())


def serve(
    folder: Path, server: FakeServer, options: RunOptions = HASTY, breaks_after_start: bool = False, top_k: int = -1
) -> Outcome:
    """Run a fresh plan in `folder` against one server, which may be good only for the start-up probe."""
    plan = make_plan(folder, NUM_ROWS, top_k=top_k)
    mode = server.mode
    if breaks_after_start:
        server.mode = ""

    async def break_() -> None:
        server.mode = mode

    return run_against(plan, [server], options, meanwhile=break_ if breaks_after_start else None)


def run_against(
    plan: Plan,
    servers: list[FakeServer],
    options: RunOptions = HASTY,
    concurrency: int = 16,
    meanwhile: Any = None,
    bound_s: float = 30.0,
) -> Outcome:
    """Run a plan against fake servers; `meanwhile` goes on beside it from the moment the engine has started."""

    async def go() -> Outcome:
        for server in servers:
            await server.up()
        http = HttpOptions(concurrency=concurrency, probe_s=0.3, recheck_s=0.05, connect_s=1.0)
        engine = HttpEngine(tuple(server.url for server in servers), "served", ByteRenderer.context_length, http)
        try:
            await engine.start()
            beside = asyncio.create_task(meanwhile()) if meanwhile else None
            await asyncio.sleep(0)
            outcome = await Run(Ledger(plan, plan.folder), engine, ByteRenderer(), options).run()
            if beside:
                await beside
            return outcome
        finally:
            await engine.close()
            for server in servers:
                await server.down()

    ledger.hidden(plan.folder)
    return bounded(go(), bound_s)


async def start_only(server: FakeServer) -> None:
    """Start an engine on a server, and stop it."""
    async with server:
        engine = HttpEngine((server.url,), "served", 4096, HttpOptions(probe_s=0.3))
        try:
            await engine.start()
        finally:
            await engine.close()


def bounded(work: Coroutine[Any, Any, Any], bound_s: float = 30.0) -> Any:
    """Run `work`, which must end by itself within the time that its deadlines imply, with room for a busy machine."""

    async def within() -> Any:
        async with asyncio.timeout(bound_s):
            return await work

    return asyncio.run(within())

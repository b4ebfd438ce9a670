"""Engines as Ray actors: real local workers, one of which is killed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from datagen import ledger
from datagen.engines import Request
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.engines.ray import RayEngine, RayOptions
from datagen.ledger import Ledger
from datagen.outcome import Outcome
from datagen.runner import Run
from manifests.schema import Sampling
from tests.datagen.small_plans import QUICK, ByteRenderer, make_plan, published, run_plan

ray = pytest.importorskip("ray", reason="needs draftmill[ray]")
pytestmark = pytest.mark.slow

ROUGH = EchoOptions(concurrency=4, delay_s=0.02, transient_frac=0.2, capacity_frac=0.2, refused_frac=0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Start two local workers' worth of Ray."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def run_on_ray(folder: Path, kill_one: bool = False) -> Outcome:
    """Run a plan on two actors, and maybe kill one on the way."""
    plan = make_plan(folder, 60, turns=2)
    ledger.hidden(folder)

    async def go() -> Outcome:
        options = RayOptions(engine="echo", replicas=2, num_gpus=0, recheck_s=0.05)
        engine = RayEngine(options, functools.partial(EchoEngine, ROUGH))
        try:
            await engine.start()
            assert engine.capacity == 8
            run = Run(Ledger(plan, folder), engine, ByteRenderer(), QUICK)
            if kill_one:
                victim = engine._pool.replicas[0].handle
                asyncio.get_running_loop().call_later(0.2, ray.kill, victim)
            return await run.run()
        finally:
            await engine.close()

    return asyncio.run(go())


def test_actors_give_the_bytes_of_an_engine_in_process(cluster: None, tmp_path: Path) -> None:
    run_plan(make_plan(tmp_path / "here", 60, turns=2), EchoEngine(ROUGH))
    outcome = run_on_ray(tmp_path / "there")
    assert outcome.end == "complete" and outcome.num_failed > 0
    assert published(tmp_path / "there") == published(tmp_path / "here")
    assert ledger.read_failed(tmp_path / "there") == ledger.read_failed(tmp_path / "here")


@pytest.mark.chaos
def test_an_actor_that_is_killed_takes_nothing_with_it(cluster: None, tmp_path: Path) -> None:
    run_plan(make_plan(tmp_path / "here", 60, turns=2), EchoEngine(ROUGH))
    outcome = run_on_ray(tmp_path / "there", kill_one=True)
    assert outcome.end == "complete"
    assert published(tmp_path / "there") == published(tmp_path / "here")


def test_a_request_that_is_cancelled_is_cancelled_in_its_actor(cluster: None) -> None:
    async def go() -> None:
        options = RayOptions(engine="echo", num_gpus=0)
        engine = RayEngine(options, functools.partial(EchoEngine, EchoOptions(delay_s=60)))
        try:
            await engine.start()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await engine.generate(Request("a", [1], Sampling(), 0, "a"))
            assert engine._pool.replicas[0].num_in_flight == 0
            assert await engine.healthy()
        finally:
            await engine.close()

    asyncio.run(go())

"""Launching: in this process, in one process per GPU, or as a rank of torchrun.

The launching process of several only watches: it passes signals on, and when a rank dies it ends the others and says which one
died of what, once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, Literal, cast

import torch

from training import checkpoint
from training.distributed import Ranks, check_world, joined
from training.job import Job, prepare
from training.plan import describe_plan
from training.trainer import Ending, train

GRACE_S = 2.0
"""Seconds that ranks have to report before the others are ended: the rank that died first is often not the first to be noticed."""


class RankDied(RuntimeError):
    """A rank ended on its own; the others were ended after it."""


def launch(job: Job) -> Ending:
    """Run a job on this machine's ranks; return how it ended.

    Raises:
        ValueError: something that a person can mend.
        RankDied: a rank was killed or failed.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
        check_world(job.recipe, world)
        with joined(job.recipe, rank, world, local, "env://") as ranks:
            return train(prepare(job), ranks)
    prepared, world = prepare(job), num_processes(job)
    check_world(job.recipe, world)
    if world == 1:
        return train(prepared, Ranks(device=torch.device("cuda" if torch.cuda.is_available() else "cpu")))
    return _watch(job, world)


def dry_run(job: Job) -> str:
    """Return what a job would do and the memory it needs, without allocating any of it."""
    prepared, world = prepare(job), num_processes(job)
    check_world(job.recipe, world)
    return describe_plan(prepared, world)


def num_processes(job: Job) -> int:
    """Return how many processes a job runs on this machine: as the recipe says, else one per visible GPU, else one.

    Raises:
        ValueError: there are fewer GPUs than processes.
    """
    wanted, visible = job.recipe.placement.processes, torch.cuda.device_count()
    if wanted and visible and wanted > visible:
        raise ValueError(f"placement.processes is {wanted}, but {visible} GPUs are visible; ask for at most as many")
    return wanted or max(1, visible)


@dataclass(frozen=True)
class _Report:
    """What a spawned process says as it ends."""

    rank: int
    kind: Literal["ending", "mistake", "failure"]
    text: str
    at: float
    """Time of the report; of several failures the first is the cause."""


def _watch(job: Job, world: int) -> Ending:
    context = multiprocessing.get_context("spawn")
    reports: Any = context.SimpleQueue()
    address = f"tcp://127.0.0.1:{_free_port()}"
    ranks = [
        context.Process(target=_rank_main, args=(job, rank, world, address, reports), name=f"rank {rank}")
        for rank in range(world)
    ]
    for process in ranks:
        process.start()
    running = {process.sentinel: process for process in ranks}
    with _signals_passed_on(ranks):
        while running:
            for ready in wait(list(running)):
                process = running.pop(cast(int, ready))
                process.join()
                if process.exitcode != 0:
                    raise _after_a_death(job, ranks, reports)
    endings = [report.text for report in _read(reports) if report.kind == "ending"]
    return cast(Ending, endings[0])


def _after_a_death(job: Job, ranks: list[SpawnProcess], reports: Any) -> Exception:
    """End what still runs, and return what to say: a person's mistake, or which rank died of what."""
    deadline = time.monotonic() + GRACE_S
    for process in ranks:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
        process.join()
    said = sorted(_read(reports), key=lambda report: report.at)
    if mistakes := [report.text for report in said if report.kind == "mistake"]:
        return ValueError(mistakes[0])
    steps = checkpoint.steps(job.out)
    others = f"the other {len(ranks) - 1} were ended; " if len(ranks) > 1 else ""
    rest = others + (f"run again to go on from step {steps[-1]}" if steps else "there is no checkpoint yet")
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            return RankDied(f"rank {rank} was killed by {signal.Signals(-code).name}; {rest}")
    if failures := [report for report in said if report.kind == "failure"]:
        return RankDied(f"rank {failures[0].rank} failed; {rest}\n{failures[0].text}")
    rank, code = next((rank, code) for rank, code in enumerate(codes) if code)
    return RankDied(f"rank {rank} exited with {code}; {rest}")


def _rank_main(job: Job, rank: int, world: int, address: str, reports: Any) -> None:
    """What a spawned process runs; it reports how it ended, or what went wrong."""
    try:
        with joined(job.recipe, rank, world, rank, address) as ranks:
            ending = train(prepare(job), ranks)
        reports.put(_Report(rank, "ending", ending, time.time()))
        return
    except ValueError as error:
        reports.put(_Report(rank, "mistake", str(error), time.time()))
    except Exception:  # noqa: BLE001 - whatever a rank dies of is the launcher's to tell
        reports.put(_Report(rank, "failure", traceback.format_exc(), time.time()))
    # Other ranks may hang in an exchange with this one: no waiting for them on the way out.
    os._exit(1)


def _read(reports: Any) -> Iterator[_Report]:
    while not reports.empty():
        yield reports.get()


@contextmanager
def _signals_passed_on(ranks: list[SpawnProcess]) -> Iterator[None]:
    def pass_on(number: int, frame: object) -> None:
        for process in ranks:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

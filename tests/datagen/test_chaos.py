"""Runs are killed again and again; what they publish in the end is what an undisturbed run publishes, byte for byte."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from datagen import ledger
from datagen.plan import Plan
from datagen.verify import VerifyCommand, verify
from tests.datagen.small_plans import make_plan, published

pytestmark = pytest.mark.chaos

KINDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ECHO = {"concurrency": 4, "delay_s": 0.01, "transient_frac": 0.1, "refused_frac": 0.05}
LONGEST_LIFE_S = 0.3
"""A run left alone takes about a second: each of its lives ends somewhere on the way."""


class Forker:
    """The program that forks runs."""

    def __init__(self) -> None:
        self.pid = 0
        environment = os.environ | {"PYTHONPATH": os.getcwd()}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.datagen.chaos_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def start(self, folder: Path, rank: int = 0, world: int = 1, **echo: Any) -> int:
        """Start a run and return its process id (and process group)."""
        assert self._process.stdin is not None
        job = {"folder": str(folder), "rank": rank, "world": world, "echo": ECHO | echo}
        self._process.stdin.write(orjson.dumps(job).decode() + "\n")
        self._process.stdin.flush()
        self.pid = int(self._said())
        return self.pid

    def end(self) -> int:
        """Wait for the run that was started: its exit code, or minus the signal that killed it."""
        return int(self._said())

    def close(self) -> None:
        """End the program."""
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    """Yield one program for all tests."""
    program = Forker()
    yield program
    program.close()


def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(forker: Forker, tmp_path: Path) -> None:
    assert_survives(forker, tmp_path, num_kills=20)


@pytest.mark.slow
def test_two_hundred_kills_lose_nothing_and_double_nothing(forker: Forker, tmp_path: Path) -> None:
    assert_survives(forker, tmp_path, num_kills=200)


def test_ranks_share_a_folder_and_each_may_die(tmp_path: Path) -> None:
    make_plan(tmp_path / "calm", 40, turns=2)
    shared = make_plan(tmp_path / "shared", 40, turns=2)
    ranks = [Forker() for _ in range(3)]
    try:
        ranks[0].start(tmp_path / "calm", delay_s=0)
        assert ranks[0].end() == 0
        for life in range(6):
            for rank, forker in enumerate(ranks):
                forker.start(tmp_path / "shared", rank=rank, world=3, delay_s=0 if life == 5 else 0.02)
            if life == 5:
                assert [forker.end() for forker in ranks] == [0, 0, 0]
                break
            time.sleep(0.1)
            for forker in ranks:
                os.killpg(forker.pid, signal.SIGKILL)
                forker.end()
    finally:
        for forker in ranks:
            forker.close()
    assert published(tmp_path / "shared") == published(tmp_path / "calm")
    assert verify(VerifyCommand(folder=shared.folder)).is_sound


def test_a_second_run_on_the_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    make_plan(tmp_path, 40)
    first, second = Forker(), Forker()
    try:
        first.start(tmp_path, delay_s=60)
        wait_for_lock(tmp_path)
        second.start(tmp_path)
        assert second.end() == 2
        second.start(tmp_path, rank=1, world=2)
        assert second.end() == 2, "a run that divides the folder differently is refused too"
        os.killpg(first.pid, signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
        second.start(tmp_path, delay_s=0)
        assert second.end() == 0, "a dead run's lock is nobody's"
    finally:
        for forker in (first, second):
            forker.close()
    assert verify(VerifyCommand(folder=tmp_path)).is_sound


def assert_survives(forker: Forker, folder: Path, num_kills: int) -> None:
    """Kill runs until `num_kills` have died, on fresh folders as old ones complete; compare every one with a calm run."""
    make_plan(folder / "calm", 60, turns=2)
    forker.start(folder / "calm", delay_s=0)
    assert forker.end() == 0
    expected, failed = published(folder / "calm"), ledger.read_failed(folder / "calm")
    assert len(failed) > 0, "rows that fail for good are part of what must survive"
    draw = random.Random(0)
    killed: Counter[signal.Signals] = Counter()
    num_folders = 0
    while killed.total() < num_kills:
        num_folders += 1
        plan = make_plan(folder / f"run_{num_folders}", 60, turns=2)
        kill_until_complete(forker, plan, draw, killed, num_kills)
        assert published(plan.folder) == expected
        assert ledger.read_failed(plan.folder) == failed
        found = verify(VerifyCommand(folder=plan.folder))
        assert (found.is_sound, found.num_done + found.num_failed) == (True, plan.num_rows), str(found)
    for kind in KINDS:
        print(f"{kind.name}: {killed[kind]} kills, 0 lost, 0 doubled, {num_folders} folders, all bytes equal")


def kill_until_complete(
    forker: Forker, plan: Plan, draw: random.Random, killed: Counter[signal.Signals], most: int
) -> None:
    """Start a run, kill it after a random time, and again, until one gets through; the last one always does."""
    while killed.total() < most:
        group = forker.start(plan.folder)
        time.sleep(draw.uniform(0, LONGEST_LIFE_S))
        kind = draw.choice(KINDS)
        try:
            os.killpg(group, kind)
        except ProcessLookupError:  # it was through already
            pass
        code = forker.end()
        if code == 0:
            return
        assert code in (-kind, 128 + kind), "killed before the handlers were there, by SIGKILL, or stopped as asked"
        killed[kind] += 1
    forker.start(plan.folder)
    assert forker.end() == 0


def wait_for_lock(folder: Path) -> None:
    """Wait until a run holds the folder."""
    path = folder / ledger.HIDDEN / "rank_000_of_001.lock"
    while not (path.exists() and path.read_bytes()):
        time.sleep(0.005)

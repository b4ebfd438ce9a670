"""Several processes: the same run as one, in both placements, and one clear message when a rank dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from training.distributed import Ranks, check_world
from training.features import server
from training.job import Job, prepare
from training.launch import RankDied, launch
from training.recipe import Recipe
from training.sinks import METRICS, read_records
from training.trainer import train

MakeJob = Callable[..., Job]

LAYOUTS: dict[str, dict[str, object]] = {
    "2 colocated": {"processes": 2},
    "4 colocated": {"processes": 4},
    "2 colocated, sharded": {"processes": 2, "shard": "fsdp"},
    "1 target, 1 drafter": {"processes": 2, "mode": "split"},
    "2 targets, 2 drafters": {"processes": 4, "mode": "split", "target_ranks": 2},
}
SAME_RUN: dict[str, object] = {
    "max_steps": 8,
    "loss__weighting": "survival",
    "loss__soft_kl": 0.3,
    "drafter__feature_noise": 0.05,
    "optimizer__ema_decay": 0.9,
}


def curves(job: Job) -> list[tuple[int, float]]:
    """Loss of every line, and held-out tau."""
    return [(r["step"], r.get("loss", r["tau"])) for r in read_records(job.out) if r["kind"] in ("train", "heldout")]


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_loss_curve_is_that_of_one_process(make_job: MakeJob, layout: str) -> None:
    alone = make_job("alone", **SAME_RUN)
    train(prepare(alone), Ranks())
    together = make_job("together", **SAME_RUN, placement=LAYOUTS[layout])
    assert launch(together) == "finished"
    print(f"\n{layout}: " + "  ".join(f"{y:.6f}" for _, y in curves(together)))
    print("alone: " + "  ".join(f"{y:.6f}" for _, y in curves(alone)))
    assert [step for step, _ in curves(together)] == [step for step, _ in curves(alone)]
    assert [y for _, y in curves(together)] == pytest.approx([y for _, y in curves(alone)], rel=2e-5)


@pytest.mark.slow
def test_under_torchrun_the_same_command_line_is_a_rank_and_the_curve_is_that_of_one_process(
    tiny_set: Path, tmp_path: Path
) -> None:
    command = [str(Path(sys.executable).with_name("train")), "--data", str(tiny_set), *TORCHRUN_RECIPE]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    for name, before in (("alone", []), ("together", torchrun)):
        subprocess.run([*before, *command, "--out", str(tmp_path / name)], check=True, timeout=300)
    alone, together = (
        [(r["step"], r["loss"]) for r in read_records(tmp_path / name) if r["kind"] == "train"]
        for name in ("alone", "together")
    )
    assert [step for step, _ in together] == [2, 4, 6]
    assert [loss for _, loss in together] == pytest.approx([loss for _, loss in alone], rel=2e-5)
    assert (tmp_path / "together" / "done.json").is_file()


TORCHRUN_RECIPE = (
    *(
        "--drafter.num-layers",
        "1",
        "--drafter.block-size",
        "4",
        "--drafter.num-features",
        "2",
        "--drafter.mask-token-id",
        "95",
    ),
    *("--blocks.anchors", "16", "--batches.tokens", "128", "--batches.max-length", "64", "--batches.per-step", "4"),
    *("--heldout.rows", "0", "--max-steps", "6", "--logging.every", "2"),
)


@pytest.mark.slow
@pytest.mark.resume
def test_a_run_of_one_process_goes_on_with_two_and_back_again(make_job: MakeJob) -> None:
    whole = make_job("whole", **SAME_RUN)
    train(prepare(whole), Ranks())
    moved = make_job("moved", **SAME_RUN, guard__max_skips=0)
    for placement, minutes in (({}, 0.0001), ({"processes": 2, "shard": "fsdp"}, 0.0001), ({}, None)):
        step = replace(
            moved,
            recipe=Recipe.model_validate(moved.recipe.model_dump() | {"placement": placement, "max_minutes": minutes}),
        )
        launch(step)
    assert [y for _, y in curves(moved)] == pytest.approx([y for _, y in curves(whole)], rel=2e-5)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_rank_that_is_killed_ends_the_others_with_one_clear_message(make_job: MakeJob) -> None:
    job = make_job(max_steps=10**6, placement={"processes": 2}, checkpoints__every=10)
    victims: list[int] = []

    def kill_the_second() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not (job.out / METRICS).is_file():
            time.sleep(0.05)
        victims.extend(_ranks_of(os.getpid()))
        os.kill(victims[1], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_second)
    killer.start()
    with pytest.raises(RankDied, match=r"^rank 1 was killed by SIGKILL; the other 1 were ended; "):
        launch(job)
    killer.join()
    assert not any(_alive(pid) for pid in victims)


def test_ranks_that_cannot_share_a_step_are_refused_before_anything_starts(make_job: MakeJob) -> None:
    with pytest.raises(ValueError, match="3 drafter ranks cannot share batches.per_step 4 evenly"):
        check_world(make_job().recipe, 3)
    with pytest.raises(ValueError, match="none is left to train"):
        check_world(make_job(placement={"mode": "split", "target_ranks": 2}).recipe, 2)


def test_target_ranks_serve_every_drafter_in_turn_and_equally_often() -> None:
    ranks = Ranks(world=8, num_targets=2)
    served = [[server(ranks, drafter, turn) for drafter in range(6)] for turn in range(4)]
    assert all(row.count(0) == row.count(1) == 3 for row in served)
    assert [row[0] for row in served] == [0, 1, 0, 1]


def _ranks_of(parent: int) -> list[int]:
    """Pids of the rank processes, in order of start: spawned children of `parent`."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_bytes()
            stat = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(stat[1]) == parent and b"spawn_main" in command:
            pids.append(int(name))
    return sorted(pids)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

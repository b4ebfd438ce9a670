"""A run: it learns, measures, stops when asked, and goes on as if it had not stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from training import checkpoint
from training import step as step_module
from training.batches import Batch
from training.distributed import Ranks
from training.job import Job, prepare
from training.optimization import learning_rate
from training.recipe import OptimizerSettings
from training.schedule import Schedule
from training.sinks import METRICS, read_records
from training.trainer import Ending, train

MakeJob = Callable[..., Job]

SERVER = multiprocessing.get_context("forkserver")
"""Starts runs of their own process without importing everything again each time."""
SERVER.set_forkserver_preload(["training.trainer"])

TIMES = {
    "tokens_per_s",
    "model_flops_per_s",
    "memory_bytes",
    "wait_frac",
    "feature_wait_frac",
    "queue_depth",
    "elapsed_s",
}
"""What a record says of the machine and not of the run."""


def run(job: Job) -> Ending:
    return train(prepare(job), Ranks())


def records(job: Job, kind: str | None = None) -> list[dict[str, Any]]:
    found = [{k: v for k, v in r.items() if k not in TIMES} for r in read_records(job.out)]
    return [r for r in found if kind in (None, r["kind"])]


def final_state(job: Job) -> dict[str, Tensor]:
    """Every tensor that the newest checkpoint holds, by path."""
    folder, _ = checkpoint.newest_intact(job.out)
    assert folder is not None
    flat: dict[str, Tensor] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, Tensor):
            flat[prefix] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}/{key}", inner)

    walk("", checkpoint.load(folder))
    return flat


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_learns_and_leaves_what_a_person_and_a_machine_look_for(make_job: MakeJob) -> None:
    job = make_job(max_steps=40, optimizer__learning_rate=1e-2)
    assert run(job) == "finished"
    losses = [record["loss"] for record in records(job, "train")]
    assert losses[-1] < losses[0] - 0.1
    last = records(job, "train")[-1]
    assert set(last["by_domain"]) == {"code", "math", "chat"} and set(last["by_bucket"]) == {"0", "1", "2"}
    assert {"accuracy", "streak", "tau", "top8_streak", "tree8_streak", "accuracy_slot_1", "gradient_norm"} <= set(last)
    measured = read_records(job.out)[-2]
    assert measured["model_flops_per_s"] > 0 and "mfu" not in measured
    assert 50e6 < measured["memory_bytes"] < 20e9
    heldout = records(job, "heldout")
    assert [record["step"] for record in heldout] == [6, 12, 18, 24, 30, 36, 40]
    assert heldout[-1]["rows"] == 6 and 1 <= heldout[-1]["tau"] <= 4
    card = json.loads((job.out / "run.json").read_text())
    assert card["recipe"]["max_steps"] == 40 and len(card["set_sha256"]) == 64 and card["versions"]["torch"]
    assert json.loads((job.out / "done.json").read_text())["steps"] == 40
    assert "<svg" in (job.out / "run.html").read_text()
    assert checkpoint.load_drafter(job.out).config.block_size == 4


def test_a_run_that_waits_for_its_batches_says_so_once(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    make_batch = Schedule.batch

    def slow_batch(schedule: Schedule, index: int) -> Batch:
        time.sleep(0.05)
        return make_batch(schedule, index)

    monkeypatch.setattr(Schedule, "batch", slow_batch)
    run(make_job(max_steps=12, logging__every=2))
    said = capfd.readouterr().err
    assert said.count("of the time goes by waiting for batches; raise batches.prefetch") == 1


@pytest.mark.resume
@pytest.mark.chaos
@pytest.mark.slow
def test_a_run_killed_three_times_ends_with_the_same_bits(make_job: MakeJob) -> None:
    changes: dict[str, object] = {
        "max_steps": 30,
        "optimizer__ema_decay": 0.9,
        "loss__weighting": "survival",
        "drafter__feature_noise": 0.05,
        "checkpoints__every": 4,
        "logging__every": 3,
    }
    undisturbed, killed = make_job("undisturbed", **changes), make_job("killed", **changes)
    run(undisturbed)
    for lines in (3, 6, 9):
        _kill_when(killed, lines)
    assert run(killed) == "finished"
    assert records(killed) == records(undisturbed)
    assert same(final_state(killed), final_state(undisturbed))


KILLS = 12
"""Kills of the run that is killed at random moments."""


@pytest.mark.resume
@pytest.mark.chaos
@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_with_the_same_bits(make_job: MakeJob) -> None:
    """`-s` prints the table: what was sent, at which step the next life went on, and how many steps were done again."""
    changes: dict[str, object] = {"max_steps": 200, "checkpoints__every": 5, "logging__every": 1, "heldout__every": 100}
    undisturbed, killed = make_job("undisturbed", **changes), make_job("killed", **changes)
    run(undisturbed)
    draw, lives = random.Random(11), []
    for _ in range(KILLS):
        process = SERVER.Process(target=run, args=(killed,))
        process.start()
        _wait_for(killed, lines=_num_lines(killed) + 1)
        process.join(draw.uniform(0, 0.8))
        if process.exitcode is not None:
            break
        sent = draw.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        assert process.pid is not None
        os.kill(process.pid, sent)
        process.join(120)
        assert process.exitcode is not None
        reached = max((r["step"] for r in read_records(killed.out)), default=0)
        lives.append((sent.name, reached, checkpoint.steps(killed.out)[-1] if checkpoint.steps(killed.out) else 0))
    assert len(lives) >= KILLS // 2
    assert run(killed) == "finished"
    print("\n| sent | step reached | goes on from |\n|---|---|---|")
    for name, reached, kept in lives:
        print(f"| {name} | {reached} | {kept} |")
    assert all(reached == kept for name, reached, kept in lives if name != "SIGKILL")
    assert records(killed) == records(undisturbed)
    assert same(final_state(killed), final_state(undisturbed))


@pytest.mark.resume
def test_sigterm_writes_a_checkpoint_and_the_run_goes_on_from_it(make_job: MakeJob) -> None:
    undisturbed, stopped = make_job("undisturbed"), make_job("stopped")
    run(undisturbed)
    process = SERVER.Process(target=run, args=(stopped,))
    process.start()
    _wait_for(stopped, lines=1)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    process.join(120)
    assert process.exitcode == 0
    assert checkpoint.steps(stopped.out)
    run(replace(stopped, resume=True))
    assert records(stopped) == records(undisturbed)
    assert same(final_state(stopped), final_state(undisturbed))


@pytest.mark.resume
def test_out_of_time_is_a_checkpoint_and_not_an_error(make_job: MakeJob) -> None:
    job = make_job(max_steps=10**6, max_minutes=0.02)
    assert run(job) == "time"
    assert checkpoint.steps(job.out) and not (job.out / "done.json").exists()


@pytest.mark.resume
def test_a_finished_run_is_left_alone_when_it_is_run_again(make_job: MakeJob) -> None:
    job = make_job(max_steps=4)
    run(job)
    before = {path: path.read_bytes() for path in (job.out / METRICS, job.out / "step_4" / "checkpoint.pt")}
    assert run(job) == "finished"
    assert all(path.read_bytes() == content for path, content in before.items())


def test_another_recipe_set_or_nothing_to_resume_is_refused(make_job: MakeJob, tiny_set: Path, tmp_path: Path) -> None:
    run(make_job(max_steps=2))
    with pytest.raises(ValueError, match="optimizer.learning_rate: 0.0006 -> 0.001"):
        run(make_job(max_steps=2, optimizer__learning_rate=1e-3))
    run(make_job(max_steps=2, logging__every=1))
    with pytest.raises(ValueError, match="no checkpoint to go on from"):
        run(make_job("elsewhere", resume=True))
    other = tmp_path / "tokenized_v2"
    other.symlink_to(tiny_set)
    changed = tmp_path / "tokenized_v3"
    changed.mkdir()
    for path in tiny_set.iterdir():
        (changed / path.name).symlink_to(path)
    (changed / "set.json").unlink()
    (changed / "set.json").write_text((tiny_set / "set.json").read_text() + "\n")
    run(make_job(max_steps=2, data=other))
    with pytest.raises(ValueError, match="the set has changed"):
        run(make_job(max_steps=2, data=changed))


@pytest.mark.faults
def test_a_loss_that_is_no_number_is_named_skipped_and_stops_the_run_when_it_recurs(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_loss = step_module.block_loss

    def spoilt(*arguments: Any) -> Any:
        output = true_loss(*arguments)
        return replace(output, loss_sum=output.loss_sum * float("nan")) if spoil else output

    monkeypatch.setattr(step_module, "block_loss", spoilt)
    job = make_job(max_steps=6, guard__max_skips=2, checkpoints__every=100)
    spoil = False
    run(replace(job, out=job.out.with_name("sound")))
    spoil = True
    with pytest.raises(ValueError, match="3 steps went wrong"):
        run(job)
    skipped = records(job, "skip")
    assert [record["step"] for record in skipped] == [1, 2, 3]
    named = [row for batch in skipped[0]["micro_batches"] for row in batch["row_ids"]]
    prepared = prepare(job)
    first_step = [row for index in range(4) for row in prepared.store.row_ids(prepared.order.batch(index)[0])]
    assert named == first_step
    assert all(tensor.isfinite().all() for tensor in final_state(job).values())


def test_fine_tuning_starts_from_the_weights_of_another_run(make_job: MakeJob) -> None:
    first = make_job("first", max_steps=30, optimizer__learning_rate=1e-2)
    run(first)
    fresh, tuned = make_job("fresh", max_steps=2), replace(make_job("tuned", max_steps=2), init_from=first.out)
    run(fresh)
    run(tuned)
    assert records(tuned, "train")[0]["loss"] < records(fresh, "train")[0]["loss"] - 0.05
    with pytest.raises(ValueError, match="num_hidden_layers 1, not 2"):
        run(replace(make_job("wider", drafter__num_layers=2), init_from=first.out))


def test_the_learning_rate_warms_up_and_ends_where_the_schedule_says() -> None:
    cosine = OptimizerSettings(learning_rate=1.0, warmup_frac=0.1, final_frac=0.1)
    assert [round(learning_rate(cosine, step, 100), 3) for step in (0, 4, 9, 10, 55)] == [0.1, 0.5, 1.0, 1.0, 0.55]
    assert learning_rate(cosine, 99, 100) == pytest.approx(0.1, abs=1e-3)
    wsd = OptimizerSettings(learning_rate=1.0, warmup_frac=0.0, schedule="wsd", decay_frac=0.2)
    assert [round(learning_rate(wsd, step, 100), 3) for step in (0, 79, 80, 90, 99)] == [1.0, 1.0, 1.0, 0.5, 0.05]


def _wait_for(job: Job, lines: int) -> None:
    path, deadline = job.out / METRICS, time.monotonic() + 120
    while not path.is_file() or path.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _num_lines(job: Job) -> int:
    path = job.out / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _kill_when(job: Job, lines: int) -> None:
    """Run a job in a process of its own and kill it once it has written so many lines."""
    process = SERVER.Process(target=run, args=(job,))
    process.start()
    _wait_for(job, lines)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL

"""The training run: steps in order, measurements, checkpoints, and the ways it ends.

Top to bottom: build what the job needs, go on from the newest checkpoint, then step after step until all are done, time is
up, or someone asks it to stop. What a step computes is `step.py`'s, who does what `distributed.py`'s, what changes and is kept
`state.py`'s.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from training.batches import Prefetched
from training.curves import write_curves
from training.distributed import Ranks, StopVote, gradients_wait
from training.drafter import noise_width
from training.feature_cache import RememberingTarget
from training.features import FeatureServer, FeatureSource, LocalTarget, RemoteTarget
from training.flops import peak_flops, step_cost
from training.guard import Guard
from training.heldout import measure_heldout
from training.job import Prepared, check_same_run, locate_target, write_done, write_run_card
from training.losses import update_survival
from training.measurements import Measurements, peak_memory_bytes
from training.metrics import survival_counts
from training.optimization import learning_rate, update_ema
from training.progress import Progress, clock
from training.schedule import Schedule
from training.sinks import Sink, open_sinks
from training.state import State, begin, restore, save
from training.step import Objective, clip_gradients, micro_batch_loss, scale_gradients
from training.target import Target

Ending = Literal["finished", "time", "signal"]

WAIT_WARNING_FRAC = 0.02
"""Share of the time spent waiting for batches from which the person is told."""


def train(prepared: Prepared, ranks: Ranks) -> Ending:
    """Run a job on this rank until it ends; return why it did.

    Raises:
        ValueError: the folder holds another run, a checkpoint cannot be written, or too many steps went wrong.
    """
    recipe = prepared.job.recipe
    check_same_run(prepared)
    dtype = compute_dtype(recipe.compute.dtype, ranks.device)
    with_final = recipe.loss.soft_kl > 0
    if not ranks.trains:
        target = _load_target(prepared, dtype, ranks)
        return serve(prepared, ranks, FeatureServer(ranks, target, prepared.config.target_layer_ids, with_final))
    source: FeatureSource
    if ranks.num_targets:
        source = RemoteTarget(ranks, dtype, with_final)
    else:
        source = LocalTarget(_load_target(prepared, dtype, ranks))
        if recipe.compute.feature_cache_gib:
            source = RememberingTarget(source, int(recipe.compute.feature_cache_gib * 2**30))
    state = begin(prepared, ranks, dtype)
    notes = restore(state, prepared, ranks)
    ranks.from_rank(ranks.num_targets, state.step)
    if ranks.leads:
        write_run_card(prepared)
    sharded = isinstance(state.forward, FSDPModule)
    run = _Run(prepared, ranks, Objective(recipe, prepared.config, source, ranks.device, dtype, sharded), state)
    for note in notes:
        run.progress.say(note)
    try:
        return run.until_it_ends()
    finally:
        run.close()


def serve(prepared: Prepared, ranks: Ranks, server: FeatureServer) -> Ending:
    """Run the target for the drafter ranks until they end: the same steps, seen from the other side."""
    schedule, vote = Schedule(prepared, ranks.num_drafters), StopVote(ranks)
    ending: Ending = "finished"
    with _stop_signals() as asked:
        for step in range(ranks.from_rank(ranks.num_targets, None), prepared.total_steps):
            if vote.stops(bool(asked)):
                ending = "time"
                break
            for index, drafter in schedule.step(step):
                if server.serves_next(drafter):
                    server.send(schedule.batch(index).to(ranks.device), drafter)
            if schedule.measures_heldout(step + 1):
                for batch, drafter in schedule.heldout():
                    if server.serves_next(drafter):
                        server.send(batch.to(ranks.device), drafter)
    vote.close()
    server.close()
    return ending


def _load_target(prepared: Prepared, dtype: torch.dtype, ranks: Ranks) -> Target:
    folder = locate_target(prepared.model, prepared.revision)
    return Target.load(folder, dtype, ranks.device, prepared.job.trust_remote_code)


def compute_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products: what the recipe says, or what suits the device."""
    if wanted == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[wanted]


class _Run:
    """A run in progress on one rank."""

    def __init__(self, prepared: Prepared, ranks: Ranks, objective: Objective, state: State):
        self.prepared, self.ranks, self.objective, self.state = prepared, ranks, objective, state
        self.recipe = objective.recipe
        self.schedule = Schedule(prepared, ranks.num_drafters)
        self.measurements = Measurements(
            prepared.store.domains, len(prepared.order.bucket_rows), prepared.config.block_size, ranks.device
        )
        if state.open_sums is not None:
            self.measurements.sums_GC += state.open_sums.to(ranks.device)
        self.guard = Guard(self.recipe.guard, prepared)
        self.sinks: list[Sink] = []
        if ranks.leads:
            self.sinks = open_sinks(self.recipe.logging, prepared.job.out, prepared.card["recipe"], state.step)
        self.progress = Progress(prepared.total_steps, state.step, ranks.leads)
        self.cost = step_cost(prepared)
        self._warned_of_waiting = False
        self._window_began, self._window_waits = time.perf_counter(), torch.zeros(2, dtype=torch.float64)
        self._began_at, self._session_began = state.step, time.monotonic()
        self._session_elapsed_before = state.elapsed_s

    def until_it_ends(self) -> Ending:
        """Step until the run is done, out of time, or asked to stop; a checkpoint is written in any case."""
        vote, total = StopVote(self.ranks), self.prepared.total_steps
        batches = Prefetched(self.schedule.batch, self._indices(), self.recipe.batches.prefetch)
        ending: Ending = "finished"
        try:
            with _stop_signals() as asked:
                while self.state.step < total:
                    if vote.stops(bool(asked) or self._out_of_time()):
                        ending = "signal" if asked else "time"
                        break
                    self._step(batches)
                    self._after_step(batches)
        finally:
            batches.close()
        vote.close()
        self._last_words(ending)
        return ending

    def close(self) -> None:
        """Flush what is written and free the terminal."""
        self.progress.close()
        for sink in self.sinks:
            sink.close()

    def _step(self, batches: Prefetched) -> None:
        state, recipe, total = self.state, self.recipe, self.prepared.total_steps
        mine = self.schedule.mine(state.step, self.ranks.drafter_number)
        noise = noise_width(recipe.drafter, state.step, total)
        sums = torch.zeros(recipe.batches.per_step, 2, dtype=torch.float64, device=self.ranks.device)
        step_C: Tensor | None = None
        on_device = (batch.to(self.ranks.device) for batch in islice(batches, len(mine)))
        stream = self.objective.source.stream(on_device, self.prepared.config.target_layer_ids)
        for turn, (batch, features) in enumerate(stream):
            with gradients_wait(state.forward, turn < len(mine) - 1):
                output, document_A = micro_batch_loss(
                    self.objective, state.forward, batch, features, mine[turn], noise, state.survival_S
                )
                output.loss_sum.backward()
            sums[mine[turn] % recipe.batches.per_step] = torch.stack([output.loss_sum.detach(), output.weight_sum])
            total_C = self.measurements.add(output, document_A, batch)
            step_C = total_C if step_C is None else step_C + total_C
        assert step_C is not None
        self._update(self.ranks.sum(sums).cpu(), step_C)

    def _update(self, sums: Tensor, step_C: Tensor) -> None:
        """Apply the gradients of a step, unless it went wrong. `sums` holds loss and weight of every micro-batch of all ranks."""
        state, optimizer = self.state, self.recipe.optimizer
        norm = scale_gradients(state.drafter, self.ranks.num_drafters / float(sums[:, 1].sum()))
        state.gradient_norm = norm
        if wrong := self.guard.judge(state, sums, norm):
            state.skips += 1
            self._write({"kind": "skip", "step": state.step + 1, **wrong})
            self.progress.say(f"step {state.step + 1} left out: {wrong['reason']}; its rows are in metrics.jsonl")
        else:
            clip_gradients(state.drafter, norm, optimizer.clip_norm)
            for group in state.optimizer.param_groups:
                group["lr"] = learning_rate(optimizer, state.step, self.prepared.total_steps)
            state.optimizer.step()
            if state.ema is not None and optimizer.ema_decay is not None:
                update_ema(state.ema, state.drafter, optimizer.ema_decay)
            if state.survival_S is not None:
                labelled_S, survived_S = survival_counts(self.ranks.sum(step_C).cpu(), self.prepared.config.block_size)
                state.survival_S = update_survival(
                    state.survival_S, labelled_S, survived_S, self.recipe.loss.survival_decay
                )
        state.optimizer.zero_grad()
        state.step += 1

    def _after_step(self, batches: Prefetched) -> None:
        state, recipe = self.state, self.recipe
        last = state.step == self.prepared.total_steps
        self.progress.step(state.step)
        if state.step % recipe.logging.every == 0 or last:
            self._log(batches)
        if self.schedule.measures_heldout(state.step):
            self._measure_heldout()
        if state.step % recipe.checkpoints.every == 0 and not last:
            self._save()
        if state.skips > recipe.guard.max_skips:
            self._save()
            raise ValueError(
                f"{state.skips} steps went wrong (guard.max_skips is {recipe.guard.max_skips}); their rows are in "
                f'{self.prepared.job.out / "metrics.jsonl"} under kind "skip"; the checkpoint at step {state.step} is sound'
            )

    def _log(self, batches: Prefetched) -> None:
        state, now = self.state, time.perf_counter()
        sums_GC, tokens = self.measurements.summed(self.ranks)
        took_s = now - self._window_began
        memory_bytes = max(self.ranks.gather(peak_memory_bytes(self.ranks.device)))
        waits = torch.tensor([batches.wait_s, self.objective.source.wait_s], dtype=torch.float64)
        data_s, features_s = (self.ranks.sum(waits - self._window_waits) / self.ranks.num_drafters).tolist()
        figures = self.measurements.describe(sums_GC)
        record = {
            "kind": "train",
            "step": state.step,
            "epoch": state.step * self.recipe.batches.per_step / self.prepared.order.batches_per_epoch,
            **figures,
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "gradient_norm": state.gradient_norm,
            "noise": noise_width(self.recipe.drafter, state.step - 1, self.prepared.total_steps),
            "skips": state.skips,
            "tokens_per_s": float(tokens) / took_s,
            **self._utilisation(float(tokens), figures["blocks"], took_s),
            "memory_bytes": memory_bytes,
            "wait_frac": data_s / took_s,
            "feature_wait_frac": features_s / took_s,
            "queue_depth": batches.depth,
            "elapsed_s": self._elapsed_s(),
        }
        self._write(record)
        self.progress.figures(record)
        self._warn_of_waiting(record)
        self.measurements.start_over()
        self._window_began, self._window_waits = now, waits

    def _utilisation(self, tokens: float, blocks: float, took_s: float) -> dict[str, float]:
        """Return model FLOP per second of all ranks together and, where the peak of the GPUs is known, the share of it (mfu).

        With a feature cache the target reads a document once; its part is left out then.
        """
        per_s = self.cost.flops(tokens, blocks, not self.recipe.compute.feature_cache_gib) / took_s
        peak = peak_flops(self.ranks.device, self.objective.dtype)
        return {"model_flops_per_s": per_s} | ({"mfu": per_s / (peak * self.ranks.world)} if peak else {})

    def _warn_of_waiting(self, record: dict[str, Any]) -> None:
        """Say once that steps wait for their batches, after the first line, which holds the start."""
        frac = record["wait_frac"]
        if (
            frac < WAIT_WARNING_FRAC
            or self._warned_of_waiting
            or record["step"] <= self._began_at + self.recipe.logging.every
        ):
            return
        self._warned_of_waiting = True
        self.progress.say(
            f"step {record['step']}: {frac:.0%} of the time goes by waiting for batches; raise batches.prefetch (now "
            f"{self.recipe.batches.prefetch}), and keep the set on a local disk"
        )

    def _measure_heldout(self) -> None:
        mine = (
            batch.to(self.ranks.device)
            for batch, drafter in self.schedule.heldout()
            if drafter == self.ranks.drafter_number
        )
        record = measure_heldout(self.state, self.objective, mine, self.ranks)
        self._write(record)
        domains = "  ".join(f"{domain} {value:.2f}" for domain, value in record["by_domain"].items())
        self.progress.say(f"step {self.state.step}: held-out tau {record['tau']:.2f}  ({domains})")
        self._window_began = time.perf_counter()

    def _save(self) -> None:
        self.state.elapsed_s = self._elapsed_s()
        self.state.open_sums, _ = self.measurements.summed(self.ranks)
        save(self.state, self.prepared, self.ranks)
        if self.ranks.leads:
            write_curves(self.prepared.job.out)

    def _last_words(self, ending: Ending) -> None:
        place = self.prepared.job.out / f"step_{self.state.step}"
        if self.state.step > self._began_at:
            self._save()
        elif ending == "finished":
            self.progress.say(f"finished before: {place}")
            return
        if ending == "finished":
            if self.ranks.leads:
                write_done(self.prepared.job.out, self.state.step, self.state.elapsed_s)
            self.progress.say(f"{self.state.step} steps in {clock(self.state.elapsed_s)}: {place}")
            return
        why = "asked to stop" if ending == "signal" else f"{self.recipe.max_minutes:g} minutes are over"
        self.progress.say(
            f"{why} at step {self.state.step} of {self.prepared.total_steps}: {place}; run again to go on"
        )

    def _indices(self) -> Iterator[int]:
        """Yield the micro-batches of this rank, by place in the run."""
        for step in range(self.state.step, self.prepared.total_steps):
            yield from self.schedule.mine(step, self.ranks.drafter_number)

    def _write(self, record: dict[str, Any]) -> None:
        for sink in self.sinks:
            sink.write(record)

    def _elapsed_s(self) -> float:
        return self._session_elapsed_before + time.monotonic() - self._session_began

    def _out_of_time(self) -> bool:
        limit = self.recipe.max_minutes
        return limit is not None and time.monotonic() - self._session_began >= 60 * limit


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and the first Ctrl-C instead of dying of them; a second Ctrl-C ends the process at once."""
    caught: list[int] = []

    def note(number: int, frame: object) -> None:
        caught.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""How often `drafter diagnose` cries wolf, and how often it sees the wolf: made-up runs, healthy ones and ones with a known fault.

A healthy run here is anything that a sound recipe can give: 30 to 600 records of 1 to 50 steps, one to eight length buckets in the
trainer's own order, losses that fall as powers, exponentials or in stairs of epochs, noise that is heavy-tailed and remembers its
past, gradients that shrink, grow a little and are clipped now and then, held-out tau that wobbles on its plateau, every schedule
of the learning rate. Each fault is put into such a run, at a strength drawn between plain and gross. The share of healthy
runs with a finding should be next to nothing: a warning that is often wrong is read by nobody.

    python -m benchmarks.diagnose [--quick] [--runs 2000]
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from training.optimization import learning_rate
from training.order import interleave
from training.recipe import OptimizerSettings
from training.symptoms import find_symptoms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the runs")
    parser.add_argument("--runs", type=int, default=2000, help="healthy runs; a tenth as many with each fault")
    arguments = parser.parse_args()
    count = arguments.runs // 10 if arguments.quick else arguments.runs
    said = [set(symptoms(healthy(seed))) for seed in range(count)]
    alarms, wrong = Counter(symptom for one in said for symptom in one), sum(map(bool, said))
    print(f"{count} healthy runs: {wrong} with a finding; {dict(alarms)}", flush=True)
    figures: dict[str, Any] = {"healthy_runs": count, "false_alarm_rate": wrong / count, "false_alarms": dict(alarms)}
    found = {}
    for name in FAULTS:
        seeds = range(10_000, 10_000 + max(20, count // 10))
        found[name] = sum(name in symptoms(faulty(name, seed)) for seed in seeds) / len(seeds)
        print(f"{name:20} named in {found[name]:.1%} of {len(seeds)} runs", flush=True)
    print(json.dumps(figures | {"found": found, "found_worst": min(found.values())}))


@dataclass
class Run:
    """A made-up run: its card, what each record holds before a fault changes it, and what the generator drew."""

    dice: np.random.Generator
    card: dict[str, Any]
    records: list[dict[str, Any]]
    heldout: list[dict[str, Any]]
    bucket_losses: np.ndarray
    shares: np.ndarray
    """Of blocks, [records, buckets]."""
    levels: np.ndarray
    """Loss of a record whose buckets have their usual shares."""

    def all_records(self) -> list[dict[str, Any]]:
        """Return training and held-out records in the order of a run."""
        return sorted(self.records + self.heldout, key=lambda record: (record["step"], record["kind"] == "heldout"))


def symptoms(run: Run) -> list[str]:
    """Return what `drafter diagnose` finds in a run."""
    return [finding.symptom for finding in find_symptoms(run.all_records(), run.card)]


def healthy(seed: int) -> Run:
    """Return a run without a fault."""
    dice = np.random.default_rng([1, seed])
    count, every = int(np.exp(dice.uniform(np.log(30), np.log(600)))), int(dice.choice([1, 5, 10, 20, 50]))
    buckets = int(dice.integers(1, 9))
    per_step = int(dice.choice([p for p in (1, 2, 4, 8, 16, 32) if p * every >= 2 * buckets]))
    anchors, fill = int(dice.choice([64, 128, 256, 512])), dice.uniform(0.6, 1.0)
    per_bucket = int(dice.integers(5, 400))
    shares = _bucket_shares(buckets, per_bucket, per_step * every, count)
    bucket_losses = np.exp(np.sort(dice.normal(0, dice.uniform(0, 0.3), buckets))[::-1])
    steps = every * np.arange(1, count + 1)
    levels = _levels(dice, steps, epochs=steps * per_step / (per_bucket * buckets))
    blocks = anchors * fill * per_step * every
    optimizer = OptimizerSettings(
        schedule=str(dice.choice(["cosine", "wsd", "constant"])),
        warmup_frac=dice.uniform(0, 0.1),
        final_frac=float(dice.choice([0.0, 0.1])),
    )
    card = {
        "total_steps": int(steps[-1]),
        "recipe": {
            "blocks": {"anchors": anchors},
            "batches": {"per_step": per_step, "tokens": 8192},
            "logging": {"every": every},
            "optimizer": {"clip_norm": 1.0},
            "placement": {"mode": "colocated"},
        },
        "buckets": [
            {
                "rows": per_bucket * int(anchors / dice.uniform(9, 60)),
                "batches": per_bucket,
                "shortest": 1,
                "longest": 2,
            }
            for _ in range(buckets)
        ],
    }
    noise, domain_losses = dice.uniform(0.003, 0.06), np.exp(dice.normal(0, 0.25, 3))
    mix = dice.dirichlet([2.0] * 3)
    norms = _gradient_norms(dice, count)
    streaks = _streaks(dice, levels)
    slots = int(dice.choice([3, 7, 15]))
    records = []
    for n, step in enumerate(steps):
        rows = max(16, per_step * every * 4)
        here = dice.multinomial(rows, mix) / rows
        level = levels[n] * math.exp(noise * dice.standard_t(5))
        chance = min(0.97, streaks[n] / (1 + streaks[n]))
        records.append(
            {
                "kind": "train",
                "step": int(step),
                "blocks": blocks,
                "loss": level * float(shares[n] @ bucket_losses) * float(here @ domain_losses / (mix @ domain_losses)),
                "tau": 1 + streaks[n] * math.exp(dice.normal(0, 0.02)),
                "by_bucket": {
                    str(b): {"blocks": blocks * shares[n, b], "loss": level * bucket_losses[b]}
                    for b in range(buckets)
                    if shares[n, b]
                },
                "by_domain": {
                    name: {"blocks": blocks * here[d], "loss": level * domain_losses[d]}
                    for d, name in enumerate(("code", "math", "chat"))
                },
                "learning_rate": learning_rate(optimizer, int(step) - 1, int(steps[-1])),
                "gradient_norm": norms[n],
                "wait_frac": float(min(0.1, dice.exponential(0.01))),
                "queue_depth": int(dice.integers(1, 5)),
            }
            | _slot_accuracies(dice, chance, slots, blocks)
        )
    return Run(dice, card, records, _heldout(dice, steps, streaks), bucket_losses, shares, levels)


def faulty(fault: str, seed: int) -> Run:
    """Return a run of at least 100 records and three buckets with a fault."""
    number = seed
    while True:
        run = healthy(number)
        if len(run.records) >= 100 and run.shares.shape[1] >= 3:
            FAULTS[fault](run)
            return run
        number += 1_000_000


def _bucket_shares(buckets: int, per_bucket: int, per_record: int, count: int) -> np.ndarray:
    """Return the share of every bucket in every record [records, buckets], in the trainer's order."""
    epoch = interleave(np.full(buckets, per_bucket))[:, 0]
    at = np.arange(count * per_record) % len(epoch)
    return np.stack([(epoch[at] == b).reshape(count, per_record).mean(axis=1) for b in range(buckets)], axis=1)


def _levels(dice: np.random.Generator, steps: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """Return the loss without the noise of single records."""
    t = steps / steps[-1]
    floor, rise, pace = dice.uniform(0.8, 4), dice.uniform(0.6, 2), np.exp(dice.uniform(np.log(0.02), np.log(0.4)))
    shapes = ((1 + t / pace) ** -dice.uniform(0.3, 1.2), np.exp(-t / pace), 1 - np.log1p(t / pace) / np.log1p(1 / pace))
    falls = floor * (1 + rise * shapes[int(dice.integers(3))])
    # Seen a second time, a row is easier: the loss goes down a stair at every epoch, less and less.
    if dice.random() < 0.4:
        falls *= np.exp(-dice.uniform(0, 0.06) * np.minimum(np.floor(epochs), 6))
    wander = np.zeros(len(steps))
    for n in range(1, len(steps)):
        wander[n] = 0.8 * wander[n - 1] + dice.normal(0, 0.004)
    return falls * np.exp(wander)


def _gradient_norms(dice: np.random.Generator, count: int) -> np.ndarray:
    t = np.linspace(0.01, 1, count)
    middle, trend = np.exp(dice.uniform(np.log(0.05), np.log(3))), dice.uniform(-0.6, 0.25)
    return middle * t**trend * np.exp(dice.uniform(0.05, 0.35) * dice.standard_t(8, count))


def _streaks(dice: np.random.Generator, levels: np.ndarray) -> np.ndarray:
    """Return streaks that rise as the loss falls."""
    fallen = (levels[0] - levels) / max(levels[0] - levels.min(), 1e-9)
    return dice.uniform(0, 0.4) + dice.uniform(0.3, 5) * np.clip(fallen, 0, None) ** dice.uniform(1, 2)


def _slot_accuracies(dice: np.random.Generator, chance: float, slots: int, blocks: float) -> dict[str, float]:
    found, reached = {}, blocks
    for slot in range(1, slots + 1):
        if reached < 1:
            break
        here = chance * (1 - 0.02 * slot)
        right = dice.binomial(int(reached), here)
        found[f"accuracy_slot_{slot}"] = right / int(reached)
        reached = float(right)
    return found


def _heldout(dice: np.random.Generator, steps: np.ndarray, streaks: np.ndarray) -> list[dict[str, Any]]:
    """Return held-out records: up to 40, below training by up to a fifth, in some runs on a plateau a little early."""
    measured = np.unique(np.linspace(1, len(steps) - 1, int(dice.integers(2, 41))).astype(int))
    below, plateau, wobble = dice.uniform(0.8, 1.0), dice.uniform(0.4, 1.5), dice.uniform(0.002, 0.02)
    reach = np.minimum(measured, int(plateau * len(steps)))
    means = [
        max(float(streaks[max(0, n - 2) : n + 1].mean()), 0.85 * streaks[now])
        for n, now in zip(reach, measured, strict=True)
    ]
    return [
        {"kind": "heldout", "step": int(steps[n]), "tau": 1 + max(0.0, below * mean + wobble * dice.normal() * (1 + mean)), "by_domain": {}}
        for n, mean in zip(measured, means, strict=True)
    ]  # fmt: skip


def _one_bucket_a_record(run: Run, leading: Callable[[int], int]) -> None:
    """Let every record hold batches of one bucket, whose losses lie apart."""
    buckets = run.shares.shape[1]
    apart = np.exp(run.dice.uniform(0.25, 0.5) * np.linspace(1, -1, min(3, buckets)))
    for n, record in enumerate(run.records):
        bucket = leading(n) % len(apart)
        record["loss"] = float(run.levels[n] * apart[bucket] * math.exp(run.dice.normal(0, 0.02)))
        record["by_bucket"] = {str(bucket): {"blocks": record["blocks"], "loss": record["loss"]}}


def _homogeneous(run: Run) -> None:
    _one_bucket_a_record(run, lambda n: int(run.dice.integers(3)))


def _ladder(run: Run) -> None:
    length = int(run.dice.integers(8, max(9, len(run.records) // 8)))
    _one_bucket_a_record(run, lambda n: n // length)


def _dead_slot(run: Run) -> None:
    slot = int(run.dice.integers(2, 4))
    for record in run.records:
        record["blocks"] = max(record["blocks"], 2000.0)
        for near in range(1, 4):
            record[f"accuracy_slot_{near}"] = 0.5 + run.dice.normal(0, 0.01)
        record[f"accuracy_slot_{slot}"] = float(run.dice.uniform(0, 0.1))


def _spikes(run: Run) -> None:
    stable = run.records[len(run.records) // 3 :]
    middle = float(np.median([record["gradient_norm"] for record in stable]))
    for record in run.dice.choice(np.array(stable, dtype=object), 3, replace=False):
        record["gradient_norm"] = middle * run.dice.uniform(30, 300)


def _growing(run: Run) -> None:
    times = run.dice.uniform(20, 200)
    for n, record in enumerate(run.records):
        record["gradient_norm"] *= times ** (n / len(run.records))


def _set_all(name: str, low: float, high: float) -> Callable[[Run], None]:
    def fault(run: Run) -> None:
        value = run.dice.uniform(low, high)
        for record in run.records:
            record[name] = value

    return fault


def _clipped(run: Run) -> None:
    times = run.dice.uniform(15, 100) / float(np.median([record["gradient_norm"] for record in run.records]))
    for record in run.records:
        record["gradient_norm"] *= times


def _schedule_restarts(run: Run) -> None:
    at = int(run.dice.uniform(0.4, 0.7) * len(run.records))
    for n, record in enumerate(run.records):
        record["learning_rate"] = 6e-4 * (1 - (n % at) / at)


def _not_learning(run: Run) -> None:
    level, noise = run.dice.uniform(5, 12), run.dice.uniform(0.002, 0.01)
    for record in run.records:
        record["loss"] = level * math.exp(run.dice.normal(0, noise))
        record["tau"] = 1 + abs(run.dice.normal(0, 0.01))


def _starved(run: Run) -> None:
    low = run.dice.uniform(0.2, 0.7)
    for record in run.records:
        record["wait_frac"], record["queue_depth"] = low + run.dice.uniform(0, 0.1), 0


def _over_trained(run: Run) -> None:
    peak, fall = run.dice.uniform(0.3, 0.6), run.dice.uniform(0.3, 0.6)
    last, top = run.records[-1]["step"], run.dice.uniform(1.8, 4)
    steps = [record["step"] for record in run.records][:: max(1, len(run.records) // 20)]
    run.heldout = [
        {"kind": "heldout", "step": s, "by_domain": {}, "tau": 1 + (top - 1) * ((s / last / peak) ** 0.3 if s < peak * last else 1 - fall * (s / last - peak) / (1 - peak)) + run.dice.normal(0, 0.01)}
        for s in steps
    ]  # fmt: skip


def _flatters(run: Run) -> None:
    for record in run.heldout[-3:] if len(run.heldout) >= 3 else []:
        record["tau"] = 1.1
    run.heldout = run.heldout if len(run.heldout) >= 3 else [
        {"kind": "heldout", "step": run.records[n]["step"], "by_domain": {}, "tau": 1.1} for n in (20, 60, 99)
    ]  # fmt: skip
    for record in run.records:
        record["tau"] = 1 + (record["tau"] - 1) * 0.1 + run.dice.uniform(1.2, 3)


def _unused_anchors(run: Run) -> None:
    share = run.dice.uniform(0.1, 0.4)
    for record in run.records:
        record["blocks"] = record["blocks"] * share


FAULTS: dict[str, Callable[[Run], None]] = {
    "loss bands": _homogeneous,
    "homogeneous batches": _homogeneous,
    "loss ladder": _ladder,
    "dead slot": _dead_slot,
    "gradient spikes": _spikes,
    "growing gradients": _growing,
    "no gradient": _set_all("gradient_norm", 0.0, 0.0),
    "always clipped": _clipped,
    "learning rate": _schedule_restarts,
    "not learning": _not_learning,
    "waiting for data": _starved,
    "over-trained": _over_trained,
    "training flatters": _flatters,
    "anchors unused": _unused_anchors,
}


if __name__ == "__main__":
    main()

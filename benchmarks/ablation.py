"""What each loss of the trainer is worth: the same set, steps and seeds for every loss, tau on held-out documents at the end.

Every run is the `train` command in a folder of its own, so a run that is done is not done again and one that was stopped goes on.
Seeds set the weights, the order of data and the anchors, and each seed is given to every loss: differences from the default are
taken within a seed, which leaves what the seeds themselves do out of them.

    python -m benchmarks.ablation --data SET --out FOLDER [--recipe demo.yaml] [--steps 150] [--seeds 3] [-- TRAIN OPTIONS]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from training.sinks import read_records

BASE = "gamma"
LOSSES: dict[str, tuple[str, ...]] = {
    BASE: (),
    "nearly even weights (gamma 1,000)": ("--loss.gamma", "1000"),
    "survival": ("--loss.weighting", "survival"),
    "dpace": ("--loss.weighting", "dpace"),
    "soft_kl 0.5": ("--loss.soft-kl", "0.5"),
    "soft_kl 1, temperature 2": ("--loss.soft-kl", "1", "--loss.temperature", "2"),
    "cap 0.1": ("--loss.cap", "0.1"),
}
TRAINED_ON_SAMPLE = 5
"""Last training records that are averaged: what a loss does to the blocks it is trained on."""


def main() -> None:
    arguments = _parse()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in LOSSES}
    for seed in range(arguments.seeds):
        for number, (name, options) in enumerate(LOSSES.items()):
            run = arguments.out / f"loss{number}_seed{seed}"
            found[name].append(outcome(_train(arguments, run, seed, options)))
            print(f"{name}, seed {seed}: {found[name][-1]}", flush=True)
    table = {name: summary(runs, found[BASE]) for name, runs in found.items()}
    for line in markdown(table):
        print(line)
    print(json.dumps({"steps": arguments.steps, "seeds": arguments.seeds, "runs": found, "table": table}))


def outcome(records: list[dict[str, Any]]) -> dict[str, float]:
    """Return what a finished run came to: its last held-out tau by pointer walk, and means of its last training records."""
    heldout = [record for record in records if record["kind"] == "heldout"][-1]
    trained = [record for record in records if record["kind"] == "train"][-TRAINED_ON_SAMPLE:]
    figures = {"heldout_tau": heldout["tau"]}
    for name in ("tau", "accuracy", "tree16_streak", "top8_streak"):
        figures[name] = float(np.mean([record[name] for record in trained]))
    return figures


def summary(runs: list[dict[str, float]], base: list[dict[str, float]]) -> dict[str, float]:
    """Return means over seeds, and of held-out tau the spread over seeds and the gain over the default with its standard error."""
    figures = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    taus = np.array([run["heldout_tau"] for run in runs])
    gains = taus - np.array([run["heldout_tau"] for run in base])
    figures["heldout_tau_sd"] = float(taus.std(ddof=1)) if len(taus) > 1 else 0.0
    figures["gain"] = float(gains.mean())
    figures["gain_se"] = float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0
    return figures


def markdown(table: dict[str, dict[str, float]]) -> list[str]:
    """Return the lines of a Markdown table with a row for every loss."""
    lines = [
        "| loss | held-out tau (sd over seeds) | against the default | training tau | accuracy | streak of 8 likeliest | streak of 16-node trees |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        gain = "" if name == BASE else f"{row['gain']:+.3f} ± {row['gain_se']:.3f}"
        lines.append(
            f"| {name} | {row['heldout_tau']:.3f} ({row['heldout_tau_sd']:.3f}) | {gain} | {row['tau']:.3f} "
            f"| {row['accuracy']:.3f} | {row['top8_streak']:.3f} | {row['tree16_streak']:.3f} |"
        )
    return lines


def _train(arguments: argparse.Namespace, run: Path, seed: int, options: tuple[str, ...]) -> list[dict[str, Any]]:
    command = [str(Path(sys.executable).parent / "train"), "--data", str(arguments.data), "--recipe", arguments.recipe]
    command += [
        "--out",
        str(run),
        "--seed",
        str(seed),
        "--max-steps",
        str(arguments.steps),
        *options,
        *arguments.options,
    ]
    if not (run / "done.json").is_file():
        done = subprocess.run(command, stdout=subprocess.DEVNULL)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} exited with {done.returncode}")
    return read_records(run)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    parser.add_argument("--recipe", default="demo.yaml")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("options", nargs="*", help="options of `train`, after --")
    return parser.parse_args()


if __name__ == "__main__":
    main()

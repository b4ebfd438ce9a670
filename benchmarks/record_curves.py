"""Curves of real training runs, small enough for a CPU, that `drafter forecast` is tested against.

Each run trains a small drafter on a tiny random target whose documents come from random Markov chains of two domains: easy
(few continuations) and hard (many). Seeds, learning rates, schedules and sizes differ, so that curves saturate early, late
and not at all. Written are accuracy, streak and tau of training blocks, overall and by domain, and held-out tau.

    python -m benchmarks.record_curves [--quick] [--out tests/training/recorded_curves.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from curation.arrow_sets import HELDOUT, SCHEMA, SET_CARD
from training.job import Job
from training.launch import launch
from training.recipe import Recipe
from training.sinks import read_records

VOCAB, ORDER_STATES = 64, 61

RUNS = (
    {"seed": 0, "rate": 3e-3, "schedule": "cosine", "steps": 240},
    {"seed": 1, "rate": 1e-3, "schedule": "cosine", "steps": 300},
    {"seed": 2, "rate": 3e-3, "schedule": "wsd", "steps": 240},
    {"seed": 3, "rate": 5e-4, "schedule": "constant", "steps": 300},
    {"seed": 4, "rate": 2e-3, "schedule": "cosine", "steps": 180},
    {"seed": 5, "rate": 6e-3, "schedule": "wsd", "steps": 180},
)
"""What differs between the runs."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short runs")
    parser.add_argument("--out", type=Path, default=Path("recorded_curves.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs = [run | {"steps": 60} for run in RUNS[:2]] if arguments.quick else list(RUNS)
    started, curves = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        target = _write_target(Path(folder) / "target")
        for number, run in enumerate(runs):
            data = _write_set(Path(folder) / f"set{number}", target, run["seed"])
            out = Path(folder) / f"run{number}"
            launch(Job(data=data, out=out, recipe=_recipe(run), target=str(target)))
            curves += [{"run": run} | curve for curve in _curves(read_records(out))]
            print(f"{run}: {len(curves)} curves so far, {time.monotonic() - started:.0f} s", flush=True)
    arguments.out.write_text("[\n" + ",\n".join(json.dumps(curve) for curve in curves) + "\n]\n")
    print(json.dumps({"runs": len(runs), "curves": len(curves), "seconds": round(time.monotonic() - started)}))


def _recipe(run: dict) -> Recipe:
    return Recipe.model_validate(
        {
            "drafter": {"num_layers": 1, "block_size": 6, "num_features": 2, "mask_token_id": VOCAB - 1},
            "blocks": {"anchors": 24},
            "batches": {"tokens": 256, "per_step": 1, "max_length": 64, "buckets": 2},
            "optimizer": {"learning_rate": run["rate"], "schedule": run["schedule"]},
            "checkpoints": {"every": 10_000},
            "heldout": {"every": max(10, run["steps"] // 20), "rows": 9},
            "logging": {"every": 3, "tree_blocks": 8},
            "compute": {"dtype": "float32"},
            "max_steps": run["steps"],
            "epochs": 1000,
            "seed": run["seed"],
        }
    )


def _write_target(folder: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=48, intermediate_size=96, num_hidden_layers=6, num_attention_heads=3, num_key_value_heads=3,
        head_dim=16, vocab_size=VOCAB, initializer_range=0.1, max_position_embeddings=128,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)
    return folder


def _write_set(folder: Path, target: Path, seed: int) -> Path:
    dice = np.random.default_rng(seed)
    chains = {
        name: dice.dirichlet(np.full(VOCAB - 1, weight), size=(ORDER_STATES,))
        for name, weight in (("easy", 0.01), ("hard", 0.08))
    }
    rows = {"": [], HELDOUT: []}
    for number in range(448):
        domain = ("easy", "hard")[number % 2]
        ids = dice.integers(VOCAB - 1, size=2).tolist()
        for _ in range(int(dice.integers(30, 60))):
            ids.append(int(dice.choice(VOCAB - 1, p=chains[domain][(ids[-1] + 3 * ids[-2]) % ORDER_STATES])))
        row = {"input_ids": ids, "loss_mask": [0] * 2 + [1] * (len(ids) - 2), "seq_len": len(ids)}
        rows[HELDOUT if number < 48 else ""].append(row | {"id": str(number), "source": domain, "domain": domain})
    for name, some in rows.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        with pa.ipc.new_stream(str(folder / name / "data-00000-of-00001.arrow"), SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(some, SCHEMA))
    (folder / SET_CARD).write_bytes(orjson.dumps({"target": {"model": str(target)}, "rows": len(rows[""])}))
    return folder


def _curves(records: list[dict]) -> list[dict]:
    """Return the curves of a run: name, steps and values."""
    training = [record for record in records if record["kind"] == "train"]
    heldout = [record for record in records if record["kind"] == "heldout"]
    series = {
        name: [(r["step"], r[name]) for r in training]
        for name in ("accuracy", "streak", "tau", "top8_streak", "tree16_streak")
    }
    for domain in ("easy", "hard"):
        series[f"tau/{domain}"] = [
            (r["step"], r["by_domain"][domain]["tau"]) for r in training if domain in r["by_domain"]
        ]
        series[f"heldout tau/{domain}"] = [
            (r["step"], r["by_domain"][domain]) for r in heldout if domain in r["by_domain"]
        ]
    series["heldout tau"] = [(r["step"], r["tau"]) for r in heldout]
    return [
        {"name": name, "steps": [step for step, _ in points], "values": [round(value, 4) for _, value in points]}
        for name, points in series.items()
    ]


if __name__ == "__main__":
    main()

"""`run.html`: the curves of a run on one self-contained page, drawn from its metrics.jsonl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from training import plots
from training.durable import write_text
from training.sinks import read_records

PAGE = "run.html"

Series = dict[str, list[tuple[float, float]]]


def write_curves(run: Path) -> Path:
    """Draw the curves of a run into `run/run.html` and return it."""
    write_text(run / PAGE, _page(run.name, read_records(run)))
    return run / PAGE


def _page(name: str, records: list[dict[str, Any]]) -> str:
    training = [r for r in records if r["kind"] == "train"]
    heldout = [r for r in records if r["kind"] == "heldout"]
    skips = sum(1 for r in records if r["kind"] == "skip")
    sections = [
        _plot("Held-out tau (tokens per target forward, by pointer walk)", _heldout_series(heldout)),
        _plot("Loss", {"all": _points(training, "loss")} | _grouped(training, "by_domain", "loss")),
        _plot("Loss by length bucket (0 holds the shortest rows)", _grouped(training, "by_bucket", "loss")),
        _plot("Streaks on training blocks", {k: _points(training, k) for k in _names(training, "streak")}),
        _plot(
            "Accuracy of a slot, all earlier slots right",
            {k: _points(training, k) for k in _names(training, "accuracy_slot_")},
        ),
        _plot("Tau on training blocks, by domain", _grouped(training, "by_domain", "tau")),
        _plot("Gradient norm before clipping", {"norm": _points(training, "gradient_norm")}),
        _plot("Learning rate", {"rate": _points(training, "learning_rate")}),
        _plot("Tokens per second", {"tokens/s": _points(training, "tokens_per_s")}),
        _plot(
            "Model TFLOP per second, all ranks",
            {"TFLOP/s": [(step, rate / 1e12) for step, rate in _points(training, "model_flops_per_s")]},
        ),
        _plot("Peak memory, GB", {"memory": [(step, size / 1e9) for step, size in _points(training, "memory_bytes")]}),
        _plot("Share of time waiting for data", {"wait": _points(training, "wait_frac")}),
    ]
    last = training[-1] if training else {}
    facts = [
        f"step {last.get('step', 0):,}",
        f"epoch {last.get('epoch', 0):.2f}",
        f"loss {last['loss']:.3f}" if "loss" in last else "",
        f"held-out tau {heldout[-1]['tau']:.2f}" if heldout else "",
        f"MFU {last['mfu']:.1%}" if "mfu" in last else "",
        f"{skips} steps left out" if skips else "",
    ]
    return plots.page(name, ["  |  ".join(fact for fact in facts if fact)], sections)


def _points(records: list[dict[str, Any]], key: str) -> list[tuple[float, float]]:
    return [(r["step"], r[key]) for r in records if r.get(key) is not None]


def _grouped(records: list[dict[str, Any]], group: str, key: str) -> Series:
    names = sorted({name for r in records for name in r.get(group, {})})
    return {
        name: [(r["step"], r[group][name][key]) for r in records if key in r.get(group, {}).get(name, {})]
        for name in names
    }


def _heldout_series(records: list[dict[str, Any]]) -> Series:
    names = sorted({name for r in records for name in r["by_domain"]})
    by_domain = {n: [(r["step"], r["by_domain"][n]) for r in records if n in r["by_domain"]] for n in names}
    return {"all": _points(records, "tau")} | by_domain


def _names(records: list[dict[str, Any]], part: str) -> list[str]:
    found = {name for r in records[-1:] for name in r if part in name}
    return sorted(found, key=lambda name: (len(name), name))


def _plot(title: str, series: Series) -> str:
    """Return one plot, empty where there is nothing to draw; every name carries its last value."""
    found = [
        plots.Line(f"{name} {points[-1][1]:.3g}", points, strong=number == 0)
        for number, (name, points) in enumerate(series.items())
        if points
    ]
    return plots.lines(title if len(found) != 1 else f"{title}: {found[0].name}", found)

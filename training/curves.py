"""`run.html`: the curves of a run on one self-contained page, drawn from its metrics.jsonl."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from training.sinks import read_records

PAGE = "run.html"

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 150, 16, 32
"""Margins of a plot in pixels; the right one holds the legend."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b4c9a", "#8c564b", "#444444", "#999999")
"""Okabe and Ito's, distinguishable without full colour vision, and four more."""

Series = dict[str, list[tuple[float, float]]]


def write_curves(run: Path) -> Path:
    """Draw the curves of a run into `run/run.html` and return it."""
    records = read_records(run)
    page = run / PAGE
    temporary = page.with_suffix(".html.tmp")
    temporary.write_text(_page(run.name, records), encoding="utf-8")
    temporary.rename(page)
    return page


def _page(name: str, records: list[dict[str, Any]]) -> str:
    training = [r for r in records if r["kind"] == "train"]
    heldout = [r for r in records if r["kind"] == "heldout"]
    skips = sum(1 for r in records if r["kind"] == "skip")
    plots = [
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
        _plot("Share of time waiting for data", {"wait": _points(training, "wait_frac")}),
    ]
    last = training[-1] if training else {}
    facts = [
        f"step {last.get('step', 0):,}",
        f"epoch {last.get('epoch', 0):.2f}",
        f"loss {last['loss']:.3f}" if "loss" in last else "",
        f"held-out tau {heldout[-1]['tau']:.2f}" if heldout else "",
        f"{skips} steps left out" if skips else "",
    ]
    return _TEMPLATE.format(
        name=html.escape(name),
        facts=html.escape("  |  ".join(f for f in facts if f)),
        plots="\n".join(p for p in plots if p),
    )


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
    """Return one plot as a figure, empty where there is nothing to draw. The first series is drawn thicker."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return ""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)
    x_span, y_span = (x_high - x_low) or 1.0, (y_high - y_low) or (abs(y_high) or 1.0)

    def place(x: float, y: float) -> str:
        across = LEFT + (x - x_low) / x_span * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - y_low) / y_span * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = []
    for tick in range(5):
        value = y_low + y_span * tick / 4
        down = place(x_low, value).split(",")[1]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down}" y2="{down}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{down}" class="y">{value:.3g}</text>')
        step = x_low + x_span * tick / 4
        across = place(step, y_low).split(",")[0]
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 16}" class="x">{step:,.0f}</text>')
    for number, (name, points) in enumerate(series.items()):
        colour, width = COLOURS[number % len(COLOURS)], 2.2 if number == 0 else 1.3
        path = " ".join(place(x, y) for x, y in points)
        dots = "".join(
            f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="2" fill="{colour}"/>' for p in path.split()
        )
        line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        parts.append(line + (dots if len(points) < 40 else ""))
        legend_y = TOP + 8 + 14 * number
        parts.append(f'<rect x="{WIDTH - RIGHT + 12}" y="{legend_y - 7}" width="10" height="3" fill="{colour}"/>')
        parts.append(
            f'<text x="{WIDTH - RIGHT + 27}" y="{legend_y - 2}" class="legend">{html.escape(name)} {points[-1][1]:.3g}</text>'
        )
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label={json.dumps(html.escape(title))}>{"".join(parts)}</svg></figure>'
    )


_TEMPLATE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{name}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1360px; padding: 0 1rem; color: #1b1b1b; background: #fff }}
h1 {{ margin: 0 0 .2rem; font-size: 1.4rem }} p {{ margin: 0 0 1.4rem; color: #555 }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(520px, 1fr)); gap: 1.2rem }}
figure {{ margin: 0 }} figcaption {{ font-weight: 600 }} svg {{ width: 100%; height: auto }}
.grid {{ stroke: #e4e4e4 }} text {{ font-size: 11px; fill: #555; dominant-baseline: middle }}
.y {{ text-anchor: end }} .x {{ text-anchor: middle }} .legend {{ fill: #1b1b1b }}
</style>
<h1>{name}</h1><p>{facts}</p>
<main>
{plots}
</main></html>
"""

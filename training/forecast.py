"""The `drafter forecast` command: where a run's accuracy, streaks and tau are going, and what is left to gain.

Several runs are overlaid, and reference values ("the published drafter has tau 6.1") become shares with intervals. Curves that
cannot be extrapolated are refused one by one, with the reason. Light to import; numpy is loaded when the command runs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from training.extrapolation import Kind

TRAINING_MEASURES = (
    "accuracy",
    "streak",
    "top8_streak",
    "tree8_streak",
    "tree16_streak",
    "tree32_streak",
    "tree64_streak",
    "tau",
)
"""Measures of training blocks that are forecast."""

HELDOUT = "held-out tau"
"""The measure that counts: tau by pointer walk on held-out rows."""

SPAN = 40
"""Steps at which a forecast's band is drawn."""


class ForecastOptions(BaseModel):
    """Extrapolate runs' accuracy, streaks and tau to a later step, with intervals, or say why not."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    runs: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Training runs."""
    step: int | None = Field(default=None, ge=1)
    """Optimiser step to forecast; None: the end of the run's schedule."""
    epoch: float | None = Field(default=None, gt=0)
    """Epoch to forecast instead of a step."""
    reference: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A value to measure against, as MEASURE=VALUE, e.g. `held-out tau=6.1` or `held-out tau/code=7.2`."""
    out: Path | None = None
    """The report, a .json; the page goes beside it. None writes them into the first run."""


@dataclass(frozen=True)
class Outlook:
    """What a measure of a run is forecast to be, or why it is not."""

    run: str
    measure: str
    num_points: int
    step: float
    """That is forecast."""
    refused: str | None
    now: float | None = None
    """Where the curve is at the last point, noise taken out."""
    expected: float | None = None
    """Median of the forecast."""
    interval80: tuple[float, float] | None = None
    interval95: tuple[float, float] | None = None
    gain_per_1000_steps: float | None = None
    """What the next 1,000 steps are expected to add, at their present rate where that is too far to be forecast."""
    of_reference: tuple[float, float] | None = None
    """The 80% interval as shares of the reference value."""


def forecast(options: ForecastOptions) -> dict[str, Any]:
    """Return the forecast of every measure of every run, written as JSON and as a page.

    Raises:
        ValueError: no run, one without metrics, or a reference that is no number.
    """
    from training.diagnose import read_card
    from training.durable import write_json, write_text
    from training.forecast_page import render
    from training.sinks import read_records

    if not options.runs:
        raise ValueError("no run to forecast: `drafter forecast runs/NAME`")
    references = read_references(options.reference)
    outlooks, drawn = [], []
    for run in options.runs:
        records = read_records(run)
        card = read_card(run)
        at = step_of(options, records, card)
        for measure, points in curves_of(records).items():
            total = card.get("total_steps") or math.inf
            outlook, picture = look_ahead(
                str(run), measure, points, at, total, bounds_of(measure, card), references.get(measure)
            )
            outlooks.append(outlook)
            drawn.append(picture)
    report = {
        "runs": [str(run) for run in options.runs],
        "references": references,
        "outlooks": [asdict(outlook) for outlook in outlooks],
    }
    out = options.out or options.runs[0] / "forecast.json"
    write_json(out, report)
    write_text(out.with_suffix(".html"), render(report, drawn))
    return report | {"path": str(out), "said": say_outlooks(outlooks)}


def curves_of(records: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return (step, value) points of every measure; those of a domain are named `MEASURE/DOMAIN`."""
    training = [record for record in records if record["kind"] == "train"]
    heldout = [record for record in records if record["kind"] == "heldout"]
    curves = {HELDOUT: [(record["step"], record["tau"]) for record in heldout]}
    for domain in sorted({name for record in heldout for name in record["by_domain"]}):
        curves[f"{HELDOUT}/{domain}"] = [
            (record["step"], record["by_domain"][domain]) for record in heldout if domain in record["by_domain"]
        ]
    for measure in TRAINING_MEASURES:
        curves[measure] = [(record["step"], record[measure]) for record in training if measure in record]
    for domain in sorted({name for record in training for name in record.get("by_domain", {})}):
        found = [
            (r["step"], r["by_domain"][domain]["tau"])
            for r in training
            if "tau" in r.get("by_domain", {}).get(domain, {})
        ]
        curves[f"tau/{domain}"] = found
    return {name: points for name, points in curves.items() if points}


def look_ahead(
    run: str,
    measure: str,
    points: list[tuple[float, float]],
    at: float,
    total: float,
    bounds: tuple[float, float],
    reference: float | None,
) -> tuple[Outlook, dict[str, Any]]:
    """Return the outlook of one measure, and what is drawn of it."""
    from training.extrapolation import FARTHEST, Curve, extrapolate, why_not

    curve = Curve.of(points)
    picture: dict[str, Any] = {"run": run, "measure": measure, "points": points, "band": []}
    refused = why_not(curve, at)
    if refused is None and at <= curve.steps[-1]:
        refused = f"the run has passed step {at:,.0f}"
    if refused is None and at > total:
        refused = f"the schedule ends at step {total:,.0f}, where the learning rate does; train a longer run and forecast that"
    if refused is not None:
        return Outlook(run, measure, len(points), at, refused), picture
    last = float(curve.steps[-1])
    soon = min(last + 1000, FARTHEST * last, total)
    ahead = [last + (at - last) * n / SPAN for n in range(SPAN + 1)]
    steps = sorted({*ahead, soon})
    found = extrapolate(curve, steps, *bounds, kind_of(measure))
    place = steps.index(at)
    (low80, high80), (low95, high95) = ((found.quantile(q), found.quantile(1 - q)) for q in (0.1, 0.025))
    middle = found.quantile(0.5)
    picture["band"] = [
        (step, float(a), float(b)) for step, a, b in zip(steps, low80, high80, strict=True) if step <= at
    ]
    picture["middle"] = [(step, float(value)) for step, value in zip(steps, middle, strict=True) if step <= at]
    share = None if not reference else (float(low80[place]) / reference, float(high80[place]) / reference)
    return (
        Outlook(
            run,
            measure,
            len(points),
            at,
            None,
            now=float(middle[0]),
            expected=float(middle[place]),
            interval80=(float(low80[place]), float(high80[place])),
            interval95=(float(low95[place]), float(high95[place])),
            gain_per_1000_steps=float(middle[steps.index(soon)] - middle[0]) * 1000 / (soon - last),
            of_reference=share,
        ),
        picture,
    )


def bounds_of(measure: str, card: dict[str, Any]) -> tuple[float, float]:
    """Return the least and the largest value that a measure can have; a block of B slots gains B tokens at most."""
    name = measure.partition("/")[0]
    block = (card.get("drafter_config") or {}).get("block_size", float("inf"))
    if name == "accuracy":
        return 0.0, 1.0
    if name.endswith("tau"):
        return 1.0, block
    nodes = name.removeprefix("tree").removesuffix("_streak")
    return 0.0, min(block - 1, float(nodes) if nodes.isdigit() else block)


def kind_of(measure: str) -> Kind:
    """Return how a measure is extrapolated."""
    name = measure.partition("/")[0]
    return "tau" if name.endswith("tau") else "streak" if name.endswith("streak") else "share"


def step_of(options: ForecastOptions, records: list[dict[str, Any]], card: dict[str, Any]) -> float:
    """Return the step that is forecast for a run."""
    last = max((record["step"] for record in records), default=0)
    if options.step is not None:
        return float(options.step)
    if options.epoch is not None:
        epochs = [(record["step"], record["epoch"]) for record in records if record.get("epoch")]
        if not epochs:
            raise ValueError("the run's records name no epoch; give --step")
        return float(options.epoch * epochs[-1][0] / epochs[-1][1])
    total = card.get("total_steps") or 0
    return float(total or 2 * last)


def read_references(given: tuple[str, ...]) -> dict[str, float]:
    """Return reference values by measure.

    Raises:
        ValueError: one is not MEASURE=VALUE.
    """
    found = {}
    for text in given:
        measure, _, value = text.rpartition("=")
        try:
            found[measure.strip()] = float(value)
        except ValueError as error:
            raise ValueError(f"--reference {text!r}: expected MEASURE=VALUE, e.g. 'held-out tau=6.1'") from error
        if not measure.strip() or found[measure.strip()] <= 0:
            raise ValueError(
                f"--reference {text!r}: expected MEASURE=VALUE with a value above 0, e.g. 'held-out tau=6.1'"
            )
    return found


def say_outlooks(outlooks: list[Outlook]) -> list[str]:
    """Say every outlook on a line."""
    lines = []
    for one in outlooks:
        if one.refused is not None:
            lines.append(f"{one.run}: {one.measure}: no forecast, {one.refused}")
            continue
        assert one.interval80 is not None
        said = (
            f"{one.run}: {one.measure} {one.now:.3f} now, at step {one.step:,.0f} {one.expected:.3f} "
            f"({one.interval80[0]:.3f} to {one.interval80[1]:.3f}, 80%), {one.gain_per_1000_steps:+.3f} per 1,000 steps"
        )
        if one.of_reference is not None:
            said += f", {one.of_reference[0]:.0%} to {one.of_reference[1]:.0%} of the reference"
        lines.append(said)
    return lines


def print_forecast(report: dict[str, Any]) -> None:
    """Print what was found."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, markup=False)
    for line in report["said"]:
        console.print(line)
    path = Path(report["path"])
    console.print(f"wrote {path} and {path.with_suffix('.html')}")

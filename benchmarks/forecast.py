"""How often `drafter forecast` is right: curves cut early, against what they came to.

Each curve is cut at a share of its length; the mean of its last tenth should lie inside the 80% interval about 80% of the time,
and the interval should be narrow enough to be of use. Curves are recorded ones, of runs (their metrics.jsonl) or of a file that
`--record` wrote earlier, by default the one that the tests use; and generated ones, of made-up runs whose slots learn along
shapes that rise once or twice. The spread of a forecast is set on generated curves and tried on recorded ones.

    python -m benchmarks.forecast [--quick] [--record CURVES.json] [RUN ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from training.extrapolation import Curve, Kind, extrapolate, why_not
from training.forecast import curves_of, kind_of
from training.sinks import read_records

RECORDED = Path(__file__).parent.parent / "tests" / "training" / "recorded_curves.json"
CUTS = (0.3, 0.5, 0.7)
FEWEST_POINTS = 20
NUM_GENERATED = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="one cut instead of three")
    parser.add_argument("--record", type=Path, help="write the runs' curves to a file")
    arguments = parser.parse_args()
    recorded = [curve for run in arguments.runs for curve in _read(run)] or json.loads(RECORDED.read_text())
    if arguments.record:
        arguments.record.write_text("[\n" + ",\n".join(json.dumps(curve) for curve in recorded) + "\n]\n")
    figures: dict[str, Any] = {"curves": len(recorded), "generated_curves": NUM_GENERATED}
    generated = [generate(seed) for seed in range(NUM_GENERATED)]
    tried = [(np.array(c["steps"], float), np.array(c["values"]), kind_of(c["name"])) for c in recorded]
    for name, curves in (("recorded", tried), ("generated", generated)):
        for cut in CUTS[:1] if arguments.quick else CUTS:
            found = {f"{name}_{cut:g}_{key}": value for key, value in _summary(curves, cut).items()}
            print(", ".join(f"{key} {value}" for key, value in found.items()), flush=True)
            figures |= found
    print(json.dumps(figures))


def back_test(
    steps: np.ndarray, values: np.ndarray, cut: float, kind: Kind = "share"
) -> tuple[bool, float, float] | None:
    """Return whether the end of a curve lies in the 80% interval that its beginning gives, the interval's width as a share of the
    curve's rise, and how far above its middle the end lies, likewise; None where the forecast is refused."""
    known = max(5, int(cut * len(steps)))
    curve = Curve.of(list(zip(steps[:known], values[:known], strict=True)))
    if why_not(curve, steps[-1]) is not None:
        return None
    found = extrapolate(curve, [steps[-1]], kind=kind)
    low, middle, high = (float(found.quantile(share)[0]) for share in (0.1, 0.5, 0.9))
    final = float(values[-max(2, len(values) // 10) :].mean())
    rise = float(np.ptp(values))
    return low <= final <= high, (high - low) / rise, (final - middle) / rise


def generate(seed: int) -> tuple[np.ndarray, np.ndarray, Kind]:
    """Return a curve of a made-up run.

    The chance of each slot rises along a Hill curve, a stretched exponential, a power or a logarithm; in half of the runs a second
    rise sets in, sooner or later; in most of them the falling learning rate adds a little. Middles of rises lie anywhere from 1% of the run to twice its length.
    """
    dice = np.random.default_rng(20_000 + seed)
    count = int(dice.integers(20, 100))
    t = np.linspace(1 / count, 1, count)
    slots, top, harder = int(dice.choice([3, 7, 15])), dice.uniform(0.2, 0.95), dice.uniform(0, 0.5)
    middle, power = np.exp(dice.uniform(np.log(0.01), np.log(2))), dice.uniform(0.5, 1.5)
    second = dice.uniform(0.2, 0.9) if dice.random() < 0.5 else 0.0
    second_middle, second_power = np.exp(dice.uniform(np.log(0.15), np.log(3))), dice.uniform(1, 3)
    shape = int(dice.integers(4))
    chances = np.empty((slots, count))
    for slot in range(slots):
        late = np.exp(harder * slot / 3)
        x = t / (middle * late)
        hill = x**power / (1 + x**power)
        first = [hill, 1 - np.exp(-(x**power)), 1 - (1 + x) ** -power, np.log1p(x) / np.log1p(1 / (middle * late))]
        again = (t / (second_middle * late)) ** second_power
        chances[slot] = top * 0.97**slot * ((1 - second) * first[shape] + second * again / (1 + again))
    if dice.random() < 0.7:
        chances *= 1 + dice.uniform(0, 0.3) * (1 - np.cos(np.pi * t)) / 2
    chances = np.minimum(chances, 0.98)
    kind: Kind = "share" if dice.random() < 0.25 else "streak"
    values = chances.mean(axis=0) if kind == "share" else chances.cumprod(axis=0).sum(axis=0)
    noise = dice.uniform(0.005, 0.06) * np.ptp(values) * dice.standard_normal(count)
    return t * np.exp(dice.uniform(np.log(100), np.log(50_000))), np.maximum(values + noise, 0.0), kind


def _summary(curves: list[tuple[np.ndarray, np.ndarray, Kind]], cut: float) -> dict[str, float]:
    results = [back_test(steps, values, cut, kind) for steps, values, kind in curves]
    told = [result for result in results if result is not None]
    return {
        "refused": len(results) - len(told),
        "inside_over_told": round(float(np.mean([inside for inside, _, _ in told])), 3),
        "width_over_rise": round(float(np.median([width for _, width, _ in told])), 3),
        "end_above_middle_over_rise": round(float(np.median([above for _, _, above in told])), 3),
    }


def _read(run: Path) -> list[dict[str, Any]]:
    """Return the curves of a run that have enough points, named after it."""
    return [
        {"run": run.name, "name": name, "steps": [s for s, _ in points], "values": [round(v, 4) for _, v in points]}
        for name, points in curves_of(read_records(run)).items()
        if len(points) >= FEWEST_POINTS
    ]


if __name__ == "__main__":
    main()

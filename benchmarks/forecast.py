"""How often `drafter forecast` is right: recorded curves, cut early, against what they came to.

Each curve is cut at a share of its length; the mean of its last tenth should lie inside the 80% interval about 80% of the time,
and the interval should be narrow enough to be of use. Curves come from runs (their metrics.jsonl), or from a file that
`--record` wrote earlier, by default the one that the tests use.

    python -m benchmarks.forecast [--quick] [--record CURVES.json] [RUN ...]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from training.extrapolation import Curve, extrapolate, why_not
from training.forecast import curves_of
from training.sinks import read_records

RECORDED = Path(__file__).parent.parent / "tests" / "training" / "recorded_curves.json"
CUTS = (0.3, 0.5, 0.7)
FEWEST_POINTS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true", help="one cut instead of three")
    parser.add_argument("--record", type=Path, help="write the runs' curves to a file")
    arguments = parser.parse_args()
    curves = [curve for run in arguments.runs for curve in _read(run)] or json.loads(RECORDED.read_text())
    if arguments.record:
        arguments.record.write_text("[\n" + ",\n".join(json.dumps(curve) for curve in curves) + "\n]\n")
    figures: dict[str, Any] = {"curves": len(curves)}
    for cut in CUTS[:1] if arguments.quick else CUTS:
        results = [back_test(np.array(c["steps"], float), np.array(c["values"]), cut) for c in curves]
        told = [result for result in results if result is not None]
        name = f"cut_{cut:g}"
        figures |= {
            f"{name}_refused": len(results) - len(told),
            f"{name}_inside_over_told": round(float(np.mean([inside for inside, _ in told])), 3),
            f"{name}_width_over_rise": round(float(np.median([width for _, width in told])), 3),
        }
        print(f"cut at {cut:.0%}: {figures}", flush=True)
    print(json.dumps(figures))


def back_test(steps: np.ndarray, values: np.ndarray, cut: float) -> tuple[bool, float] | None:
    """Return whether the end of a curve lies in the 80% interval that its beginning gives, and the interval's width as a share
    of the curve's rise; None where the forecast is refused."""
    known = max(5, int(cut * len(steps)))
    curve = Curve.of(list(zip(steps[:known], values[:known], strict=True)))
    if why_not(curve, steps[-1]) is not None:
        return None
    found = extrapolate(curve, [steps[-1]])
    low, high = float(found.quantile(0.1)[0]), float(found.quantile(0.9)[0])
    final = values[-max(2, len(values) // 10) :].mean()
    return bool(low <= final <= high), (high - low) / np.ptp(values)


def _read(run: Path) -> list[dict[str, Any]]:
    """Return the curves of a run that have enough points, named after it."""
    return [
        {"run": run.name, "name": name, "steps": [s for s, _ in points], "values": [round(v, 4) for _, v in points]}
        for name, points in curves_of(read_records(run)).items()
        if len(points) >= FEWEST_POINTS
    ]


if __name__ == "__main__":
    main()

"""`drafter forecast`: intervals that hold what comes about as often as they say, and refusals where nothing can be said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from benchmarks.forecast import back_test, generate
from training.extrapolation import Curve, extrapolate, why_not
from training.forecast import HELDOUT, ForecastOptions, curves_of, forecast, kind_of, read_references

RECORDED = json.loads((Path(__file__).parent / "recorded_curves.json").read_text())


@pytest.mark.parametrize(("cut", "widest"), [(0.3, 1.0), (0.5, 0.6), (0.7, 0.6)])
def test_recorded_curves_end_inside_the_80_percent_interval_about_as_often_as_it_says(
    cut: float, widest: float
) -> None:
    """27 curves of two real runs of a few hundred steps; cut earlier than half they are still in their slow start."""
    results = [
        back_test(np.array(curve["steps"], float), np.array(curve["values"]), cut, kind_of(curve["name"]))
        for curve in RECORDED
    ]
    told = [result for result in results if result is not None]
    assert len(told) > 0.9 * len(RECORDED)
    assert 0.65 <= np.mean([inside for inside, _, _ in told]) <= 0.95
    assert np.median([width for _, width, _ in told]) < widest


def synthetic(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A power, an exponential or a logarithm with noise."""
    dice = np.random.default_rng(seed)
    steps = np.linspace(50, 4000, int(dice.integers(20, 80)))
    t = steps / steps[-1]
    shape = [
        -((t + 0.02) ** -dice.uniform(0.2, 1.0)),
        -np.exp(-t * dice.uniform(1, 6)),
        np.log1p(t * dice.uniform(3, 50)),
    ][seed % 3]
    values = 1 + 3 * (shape - shape[0]) / np.ptp(shape)
    return steps, values + 3 * dice.uniform(0.005, 0.04) * dice.standard_normal(len(steps))


def test_curves_of_every_family_end_inside_the_interval_about_as_often_as_it_says() -> None:
    told = [result for seed in range(60) if (result := back_test(*synthetic(seed), 0.3)) is not None]
    assert len(told) > 50
    assert 0.65 <= np.mean([inside for inside, _, _ in told]) <= 0.95


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.7])
def test_generated_runs_end_inside_the_interval_about_as_often_as_it_says(cut: float) -> None:
    told = [
        result
        for seed in range(1000, 1100)
        if (result := back_test(*(made := generate(seed))[:2], cut, made[2])) is not None
    ]
    assert len(told) > 90
    assert 0.7 <= np.mean([inside for inside, _, _ in told]) <= 0.95


def test_a_streak_that_bends_upwards_because_accuracy_rises_evenly_is_continued_upwards() -> None:
    steps = np.arange(100.0, 1100.0, 50.0)
    streaks = 0.0006 * steps / (1 - 0.0006 * steps)
    (middle,) = extrapolate(Curve.of(list(zip(steps, streaks, strict=True))), [1250.0], kind="streak").quantile(0.5)
    assert middle == pytest.approx(0.75 / 0.25, rel=0.15)
    (tau,) = extrapolate(Curve.of(list(zip(steps, streaks + 1, strict=True))), [1250.0], kind="tau").quantile(0.5)
    assert tau == pytest.approx(middle + 1)


@pytest.mark.parametrize(
    ("measure", "kind"),
    [("held-out tau/code", "tau"), ("tau", "tau"), ("tree8_streak", "streak"), ("accuracy", "share")],
)
def test_every_measure_is_extrapolated_as_what_it_is(measure: str, kind: str) -> None:
    assert kind_of(measure) == kind


def test_a_curve_without_noise_is_continued_and_the_interval_grows_with_the_distance() -> None:
    steps = np.arange(100.0, 2100.0, 100.0)
    curve = Curve.of([(step, 4 - 3 * (step / 100) ** -0.6) for step in steps])
    found = extrapolate(curve, [2500.0, 4000.0, 8000.0])
    expected = [4 - 3 * (step / 100) ** -0.6 for step in (2500, 4000, 8000)]
    assert (found.quantile(0.1) < expected).all() and (found.quantile(0.9) > expected).all()
    assert found.quantile(0.5) == pytest.approx(expected, rel=0.12)
    widths = found.quantile(0.9) - found.quantile(0.1)
    assert widths[0] < widths[1] < widths[2]


def test_values_that_cannot_be_are_not_forecast() -> None:
    curve = Curve.of([(step, min(0.99, 0.5 + step / 2000)) for step in range(100, 900, 100)])
    assert extrapolate(curve, [4000.0], 0.0, 1.0).samples.max() <= 1.0


@pytest.mark.parametrize(
    ("points", "at", "said"),
    [
        ([(1, 1.0), (2, 1.5), (3, 1.7), (4, 1.8)], 8, "4 points, and it takes 5"),
        ([(n, 1 + n / 10) for n in range(1, 9)], 500, "62 times as far"),
        ([(n, 2 - abs(n - 6) / 5) for n in range(1, 13)], 20, "falls over the second half"),
        ([(n, 1 + 0.5 * ((n * 7919) % 13) / 13) for n in range(1, 30)], 40, "scatter more than they rise"),
    ],
)
def test_what_cannot_be_extrapolated_is_refused_with_the_reason(points: list, at: float, said: str) -> None:
    assert said in (why_not(Curve.of(points), at) or "")


def write_run(folder: Path, scale: float = 1.0, heldout: int = 8) -> Path:
    """A run of 1,000 steps of 4,000 whose tau rises as a power of the step."""
    records: list[dict[str, Any]] = []
    for step in range(20, 1001, 20):
        tau = 1 + scale * (3 - 2.5 * (step / 20) ** -0.5)
        domains = {
            "code": {"tau": tau + 1, "loss": 1.0, "blocks": 5},
            "chat": {"tau": tau - 0.2, "loss": 2.0, "blocks": 5},
        }
        records.append(
            {
                "kind": "train",
                "step": step,
                "epoch": step / 500,
                "accuracy": tau / 10,
                "streak": tau - 1,
                "tau": tau,
                "by_domain": domains,
            }
        )
        if step % (1000 // heldout) < 20:
            records.append(
                {"kind": "heldout", "step": step, "tau": tau - 0.1, "by_domain": {"code": tau, "chat": tau - 0.3}}
            )
    folder.mkdir()
    (folder / "metrics.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    (folder / "run.json").write_text(json.dumps({"total_steps": 4000}))
    return folder


def test_the_command_forecasts_every_measure_and_domain_to_the_end_of_the_schedule(tmp_path: Path) -> None:
    report = forecast(ForecastOptions(runs=(write_run(tmp_path / "run"),), reference=("held-out tau=4.5",)))
    outlooks = {one["measure"]: one for one in report["outlooks"]}
    assert set(outlooks) == {
        HELDOUT, f"{HELDOUT}/code", f"{HELDOUT}/chat", "accuracy", "streak", "tau", "tau/code", "tau/chat",
    }  # fmt: skip
    heldout = outlooks[HELDOUT]
    assert heldout["step"] == 4000 and heldout["refused"] is None
    expected = 1 + 3 - 2.5 * 200**-0.5 - 0.1
    low, high = heldout["interval80"]
    assert low < expected < high
    assert heldout["of_reference"] == pytest.approx((low / 4.5, high / 4.5))
    assert 0 < heldout["gain_per_1000_steps"] < 0.4
    assert any("of the reference" in line for line in report["said"])


def test_runs_are_overlaid_on_one_page(tmp_path: Path) -> None:
    runs = (write_run(tmp_path / "one"), write_run(tmp_path / "two", scale=0.7))
    report = forecast(ForecastOptions(runs=runs, epoch=6, reference=("tau=4.5",), out=tmp_path / "both.json"))
    assert {one["step"] for one in report["outlooks"]} == {3000.0}
    shown = (tmp_path / "both.html").read_text()
    assert shown.count("<svg") == 8 and str(runs[1]) in shown and "reference" in shown


def test_too_few_held_out_points_are_refused_while_other_measures_are_forecast(tmp_path: Path) -> None:
    report = forecast(ForecastOptions(runs=(write_run(tmp_path / "run", heldout=3),)))
    outlooks = {one["measure"]: one for one in report["outlooks"]}
    assert "it takes 5" in outlooks[HELDOUT]["refused"]
    assert outlooks["accuracy"]["refused"] is None
    assert any("no forecast" in line for line in report["said"])


@pytest.mark.parametrize(("step", "said"), [(8000, "the schedule ends at step 4,000"), (500, "has passed step 500")])
def test_steps_behind_the_schedule_or_the_run_are_refused(tmp_path: Path, step: int, said: str) -> None:
    report = forecast(ForecastOptions(runs=(write_run(tmp_path / "run"),), step=step))
    assert all(said in one["refused"] for one in report["outlooks"])


def test_records_as_training_writes_them_become_curves() -> None:
    records = [
        {"kind": "train", "step": 10, "accuracy": 0.1, "by_domain": {"code": {"blocks": 0.0}, "math": {"tau": 1.2}}},
        {"kind": "skip", "step": 11},
        {"kind": "heldout", "step": 20, "tau": 1.1, "by_domain": {"math": 1.3}},
    ]
    assert curves_of(records) == {
        HELDOUT: [(20, 1.1)], f"{HELDOUT}/math": [(20, 1.3)], "accuracy": [(10, 0.1)], "tau/math": [(10, 1.2)],
    }  # fmt: skip


@pytest.mark.parametrize("text", ["tau", "tau=fast", "=3", "tau=-1"])
def test_a_reference_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="MEASURE=VALUE"):
        read_references((text,))

"""Where a learning curve is going, with an interval that is meant to be believed.

Accuracy rises and flattens, as a power of the step, a logarithm, or an exponential; nobody can tell which from a third of a run,
so none is chosen: each shape is fitted by least squares (linear once its exponent is fixed), weighed by how likely it makes the
points (marginal likelihood under flat priors), and the forecast is drawn from all of them, with the parameters' own uncertainty.
Half of the draws come from fits to the later points alone, because a first quick rise says little of what follows. Streaks
and tau are forecast as the accuracy that would give them were all slots alike: they curve upwards while accuracy does not.
What no family says, that runs leave their own trend (learning rates fall, data repeats), is a drift that grows with the
distance; `python -m benchmarks.forecast` measures its size on generated runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["share", "streak", "tau"]
"""What a curve measures: a share (forecast as it is), a streak of slots, or tau, which is a streak and the bonus token."""

FEWEST_POINTS = 5
"""Points below which nothing is extrapolated."""

MOST_POINTS = 60
"""Points that enter a fit; denser curves are averaged down to it."""

FARTHEST = 12.0
"""Steps beyond this many times the last one are not forecast."""

DRIFT = 0.12
"""Spread of a forecast beyond the families', as a share of the rise so far, per e-fold of steps. This and SPREAD make the
interval of generated runs hold what it says."""

SPREAD = 0.25
"""Likewise, as a share of the present slope per e-fold."""

LATE_GAIN = 0.2
"""Mean of what runs gain beyond the families', as a share of the present slope per e-fold: training has second rises that points
do not show, and no second falls."""

LATER_FRAC = 0.6
"""Of the points, those that the second half of the draws is fitted to."""

CERTAIN = 0.99
"""Accuracy above which a streak is endless for our purposes."""

SAMPLES = 4000

EXPONENTS = np.array([-1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5])
"""Of falling powers of the step; 0 stands for the logarithm, negative ones do not saturate."""

SHIFTS = np.array([0.0, 0.2])
"""Of powers: steps added to the step, as a share of the last one, for curves that start slowly."""

RATES = np.array([1.0, 2.0, 4.0, 8.0])
"""Of exponentials: e-folds over the points."""


@dataclass(frozen=True)
class Curve:
    """Points of a measure along a run."""

    steps: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, points: Sequence[tuple[float, float]]) -> Curve:
        """Return the curve of (step, value) pairs, neighbours averaged where there are more than MOST_POINTS."""
        found = np.array([point for point in points if np.isfinite(point[1])], dtype=np.float64).reshape(-1, 2)
        if len(found) > MOST_POINTS:
            found = np.array([part.mean(axis=0) for part in np.array_split(found, MOST_POINTS)])
        return cls(found[:, 0], found[:, 1])


@dataclass(frozen=True)
class Forecast:
    """What a curve will be, as far as its points can say."""

    steps: np.ndarray
    samples: np.ndarray
    """Possible values [samples, steps]."""

    def quantile(self, share: float) -> np.ndarray:
        """Return the value below which a share of the forecasts lies, by step."""
        return np.quantile(self.samples, share, axis=0)


def why_not(curve: Curve, at: float) -> str | None:
    """Return why a curve cannot be extrapolated to a step, None where it can."""
    count = len(curve.steps)
    if count < FEWEST_POINTS:
        return f"{count} points, and it takes {FEWEST_POINTS} to tell a trend; measure more often or train on"
    if at > FARTHEST * curve.steps[-1]:
        return f"step {at:,.0f} is {at / curve.steps[-1]:.0f} times as far as the run has come; nothing beyond {FARTHEST:g} times is forecast"
    if curve.values.std() < 1e-9:
        return None
    late = curve.values[count // 2 :]
    falls = np.mean([b < a for i, a in enumerate(late) for b in late[i + 1 :]]) if len(late) > 2 else 0.0
    if falls > 0.8 and np.ptp(late) > 0.15 * np.ptp(curve.values):
        return "it falls over the second half of the points: no curve that saturates; see `drafter diagnose`"
    order = np.argsort(np.argsort(curve.values))
    if (
        count >= 8
        and np.corrcoef(order, np.arange(count))[0, 1] < 0.3
        and _noise(curve.values) > 0.3 * np.ptp(curve.values) / 2
    ):
        return "the points scatter more than they rise; measure on more rows, or wait"
    return None


def extrapolate(
    curve: Curve, at: Sequence[float], low: float = 0.0, high: float = np.inf, kind: Kind = "share", seed: int = 0
) -> Forecast:
    """Return what a curve may be at some steps, from all families together.

    Args:
        curve: at least FEWEST_POINTS points that `why_not` has nothing against.
        at: steps, ascending.
        low: values below it are impossible.
        high: values above it are impossible.
        kind: of the curve's values.
        seed: of the samples.
    """
    dice, targets = np.random.default_rng(seed), np.asarray(at, dtype=np.float64)
    scaled = Curve(curve.steps, _accuracy(curve.values, kind))
    later = max(FEWEST_POINTS, round(LATER_FRAC * len(curve.steps)))
    drawn = np.concatenate(
        [
            _draw(part, targets, SAMPLES // 2, dice)
            for part in (scaled, Curve(scaled.steps[-later:], scaled.values[-later:]))
        ]
    )
    # What leaves the families' trend leaves it one way: one draw per sample, growing with the distance.
    distance = np.log(np.maximum(targets / curve.steps[-1], 1.0))
    slope, one = _slope(scaled), (len(drawn), 1)
    spread = np.hypot(DRIFT * np.ptp(scaled.values), SPREAD * slope)
    drawn = drawn + (dice.standard_normal(one) * spread + dice.exponential(LATE_GAIN, one) * slope) * distance
    return Forecast(targets, np.clip(_measured(drawn, kind), low, high))


def _accuracy(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Return the chance of a slot that gives a streak, 1 / (1 - chance) - 1, slots without end and all alike."""
    if kind == "share":
        return values
    tau = values if kind == "tau" else values + 1.0
    return 1.0 - 1.0 / np.maximum(tau, 1e-9)


def _measured(accuracy: np.ndarray, kind: Kind) -> np.ndarray:
    """Undo `_accuracy`."""
    if kind == "share":
        return accuracy
    tau = 1.0 / (1.0 - np.minimum(accuracy, CERTAIN))
    return tau if kind == "tau" else tau - 1.0


def _draw(curve: Curve, targets: np.ndarray, count: int, dice: np.random.Generator) -> np.ndarray:
    """Draw curves [count, targets] from all families, each as often as it is likely."""
    shapes = list(_shapes(curve.steps, targets))
    fits = [_Fit.of(shape, curve.values) for shape, _ in shapes]
    scores = np.array([fit.log_evidence for fit in fits])
    weights = np.exp(scores - scores.max())
    picks = dice.multinomial(count, weights / weights.sum())
    return np.concatenate(
        [fit.sample(ahead, times, dice) for fit, (_, ahead), times in zip(fits, shapes, picks, strict=True) if times]
    )


def _shapes(steps: np.ndarray, ahead: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield every family's curve at the points and ahead, scaled to rise from 0 to 1 over the points."""
    last = steps[-1]

    def scaled(values: np.ndarray, beyond: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        start, rise = values[0], values[-1] - values[0]
        return (values - start) / rise, (beyond - start) / rise

    for shift in SHIFTS:
        t, beyond = steps / last + shift, ahead / last + shift
        for exponent in EXPONENTS:
            if exponent == 0:
                yield scaled(np.log(t), np.log(beyond))
            else:
                sign = -np.sign(exponent)
                yield scaled(sign * t**-exponent, sign * beyond**-exponent)
    for rate in RATES:
        t, beyond = (steps - steps[0]) / last, (ahead - steps[0]) / last
        yield scaled(-np.exp(-rate * t), -np.exp(-rate * beyond))


@dataclass(frozen=True)
class _Fit:
    """Least squares of value = start + rise * shape, with correlated residuals allowed for."""

    coefficients: np.ndarray
    covariance: np.ndarray
    """Of the coefficients, residuals' correlation included."""
    degrees: float
    log_evidence: float

    @classmethod
    def of(cls, shape: np.ndarray, values: np.ndarray) -> _Fit:
        count = len(values)
        design = np.stack([np.ones(count), shape], axis=1)
        gram = design.T @ design
        coefficients = np.linalg.solve(gram, design.T @ values)
        residuals = values - design @ coefficients
        squares = max(float(residuals @ residuals), 1e-12 * max(1.0, float(values @ values)))
        correlation = float(np.clip((residuals[1:] @ residuals[:-1]) / squares, 0.0, 0.8))
        effective = max(3.5, count * (1 - correlation) / (1 + correlation))
        degrees = effective - 2
        variance = squares / count * effective / degrees
        covariance = np.linalg.inv(gram) * variance * count / effective
        evidence = -degrees / 2 * np.log(squares) - 0.5 * np.linalg.slogdet(gram)[1]
        return cls(coefficients, covariance, degrees, float(evidence))

    def sample(self, ahead: np.ndarray, count: int, dice: np.random.Generator) -> np.ndarray:
        """Draw curves [count, steps] ahead."""
        root = np.linalg.cholesky(self.covariance + 1e-15 * np.eye(2))
        heavy = np.sqrt(self.degrees / dice.chisquare(self.degrees, size=(count, 1)))
        drawn = self.coefficients + heavy * (dice.standard_normal((count, 2)) @ root.T)
        return drawn[:, :1] + drawn[:, 1:] * ahead


def _slope(curve: Curve) -> float:
    """Return the rise per e-fold of steps over the later half of the points, 0 where they fall."""
    count = max(4, len(curve.steps) // 2)
    return max(0.0, float(np.polyfit(np.log(curve.steps[-count:]), curve.values[-count:], 1)[0]))


def _noise(values: np.ndarray) -> float:
    """Return the standard deviation of points around their curve, from how neighbours differ."""
    return float(np.sqrt((np.diff(values) ** 2).mean() / 2))

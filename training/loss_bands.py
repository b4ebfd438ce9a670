"""Bands in a loss curve: losses that gather around a few levels instead of scattering around one.

The trend is taken out, a mixture of up to four normal distributions is fitted to what is left, and the number of bands is the
one that the Bayesian information criterion prefers, if they are well apart. A band is then described by the length bucket or
the domain that its records hold more of than others do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FEWEST_RECORDS = 40
"""Records of the stable part below which bands cannot be told from chance."""

MOST_BANDS = 4

FEWEST_SHARE = 0.07
"""A smaller band is a few outliers."""

APART = 2.5
"""Distance of neighbouring bands in standard deviations (Ashman's D; above 2 is bimodal)."""

BIC_GAIN = 10.0
"""How much better more bands must fit; 10 is called very strong evidence (Kass and Raftery 1995)."""

LIFT = 1.3
"""A group marks a band when its share there is this many times its usual share."""


@dataclass(frozen=True)
class Band:
    """A level at which losses gather."""

    loss: float
    """Its level at the end of the run, in units of the loss."""
    share: float
    """Of records."""
    group: str
    """`bucket` or `domain`, whichever marks the band; empty where neither does."""
    name: str
    lift: float
    """Its share in the band over its usual share."""


def find_bands(records: list[dict[str, Any]]) -> list[Band]:
    """Return the bands of a run's training records, lowest first; fewer than two mean that there are none."""
    stable = [record for record in stable_part(records) if record.get("loss") is not None and record["loss"] > 0]
    if len(stable) < FEWEST_RECORDS:
        return []
    steps, losses = (np.array([record[name] for record in stable], dtype=np.float64) for name in ("step", "loss"))
    residuals = detrended(steps, losses)
    means, deviations, weights, assigned = _mixture(residuals)
    if len(means) < 2:
        return []
    level = float(np.median(losses[-len(losses) // 4 :] / np.exp(residuals[-len(losses) // 4 :])))
    bands = []
    for number in np.argsort(means):
        members = [record for record, band in zip(stable, assigned, strict=True) if band == number]
        group, name, lift = _what_marks(members, stable)
        bands.append(Band(level * float(np.exp(means[number])), float(weights[number]), group, name, lift))
    return bands


def stable_part(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records after the first third, where the loss no longer falls steeply."""
    return records[len(records) // 3 :]


def detrended(steps: np.ndarray, losses: np.ndarray) -> np.ndarray:
    """Return log-losses without their trend, a parabola in log(step)."""
    x = np.log(np.maximum(steps, 1.0))
    x = x - x.mean()
    design = np.stack([np.ones_like(x), x, x**2], axis=1)
    y = np.log(np.maximum(losses, 1e-9))
    return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]


def _mixture(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return means, deviations and weights of the bands, and the band of every value."""
    best = _fit(values, 1)
    for num_bands in range(2, MOST_BANDS + 1):
        found = _fit(values, num_bands)
        if found[4] < best[4] - BIC_GAIN and _well_apart(found[0], found[1], found[2]):
            best = found
    return best[:4]


def _fit(values: np.ndarray, num_bands: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Fit a mixture by expectation maximisation, from quantiles; return it with its Bayesian information criterion."""
    means = np.quantile(values, (np.arange(num_bands) + 0.5) / num_bands)
    deviations = np.full(num_bands, max(values.std() / num_bands, 1e-4))
    weights = np.full(num_bands, 1 / num_bands)
    floor = max(1e-4, 0.02 * values.std())
    for _ in range(200):
        densities = weights * np.exp(-(((values[:, None] - means) / deviations) ** 2) / 2) / deviations
        shares = densities / np.maximum(densities.sum(axis=1, keepdims=True), 1e-300)
        totals = np.maximum(shares.sum(axis=0), 1e-9)
        moved = (shares * values[:, None]).sum(axis=0) / totals
        deviations = np.maximum(np.sqrt((shares * (values[:, None] - moved) ** 2).sum(axis=0) / totals), floor)
        weights = totals / len(values)
        if np.abs(moved - means).max() < 1e-7:
            break
        means = moved
    likelihood = np.log(np.maximum(densities.sum(axis=1) / np.sqrt(2 * np.pi), 1e-300)).sum()
    criterion = (3 * num_bands - 1) * np.log(len(values)) - 2 * likelihood
    return means, deviations, weights, shares.argmax(axis=1), float(criterion)


def _well_apart(means: np.ndarray, deviations: np.ndarray, weights: np.ndarray) -> bool:
    order = np.argsort(means)
    gaps = np.diff(means[order]) / np.sqrt((deviations[order][1:] ** 2 + deviations[order][:-1] ** 2) / 2)
    return bool((gaps > APART).all() and (weights > FEWEST_SHARE).all())


def _what_marks(members: list[dict[str, Any]], everyone: list[dict[str, Any]]) -> tuple[str, str, float]:
    """Return the bucket or domain whose share in a band exceeds its usual share most."""
    best = ("", "", 1.0)
    for group, key in (("bucket", "by_bucket"), ("domain", "by_domain")):
        usual, here = _mean_shares(everyone, key), _mean_shares(members, key)
        for name, share in here.items():
            lift = share / usual[name] if usual.get(name) else 1.0
            # Every band has its share of every group; a mark needs weight as well as lift.
            if share > 0.25 and lift > max(LIFT, best[2]):
                best = (group, name, lift)
    return best


def _mean_shares(records: list[dict[str, Any]], key: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for record in records:
        groups = record.get(key) or {}
        blocks = sum(group.get("blocks", 0.0) for group in groups.values()) or 1.0
        for name, group in groups.items():
            totals[name] = totals.get(name, 0.0) + group.get("blocks", 0.0) / blocks / len(records)
    return totals

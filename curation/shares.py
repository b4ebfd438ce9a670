"""The arithmetic of shares: fitting two axes at once, filling a total from limited stocks, rounding to whole rows."""

from __future__ import annotations

import numpy as np


def fit_shares(available: np.ndarray, rows: np.ndarray, columns: np.ndarray, rounds: int = 1000) -> np.ndarray:
    """Return a table of shares with the wanted row and column sums, as close to `available` as can be.

    Iterative proportional fitting (Deming and Stephan 1940). Where the sums cannot be had (a cell without stock would
    have to be filled) the table meets the row sums and comes near the column sums.

    Args:
        available: float64 [num_rows, num_columns], stock of each cell; a zero stays zero.
        rows: float64 [num_rows], wanted row sums, summing to 1; zero where a row has no stock.
        columns: float64 [num_columns], wanted column sums, summing to 1.
        rounds: most rounds; fitting ends sooner once column sums are met to 1e-12.
    """
    table = available / max(available.sum(), 1)
    for _ in range(rounds):
        table = table * ratio(columns, table.sum(axis=0))
        table = table * ratio(rows, table.sum(axis=1))[:, None]
        if np.abs(table.sum(axis=0) - columns).max() < 1e-12:
            break
    return table


def largest_total(limits: np.ndarray, shares: np.ndarray) -> float:
    """Return the largest total at which every cell can give its share."""
    return float((limits[shares > 0] / shares[shares > 0]).min())


def water_fill(limits: np.ndarray, shares: np.ndarray, total: float) -> np.ndarray:
    """Return sizes `min(limit, level * share)` that sum to `total`, or to all there is: the mix nearest to `shares`.

    No mix of that size is nearer in total variation, and cells below their limit keep their proportions.
    """
    sizes, below = np.zeros(len(shares)), shares > 0
    while below.any():
        level = max(total - sizes.sum(), 0) / shares[below].sum()
        full = below & (limits <= level * shares)
        if not full.any():
            sizes[below] = level * shares[below]
            break
        sizes[full] = limits[full]
        below &= ~full
    return sizes


def whole_rows(limits: np.ndarray, shares: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers of rows that sum to `total` (or to all there is), within a row of `water_fill`.

    By Sainte-Lague: seats go to the smallest (k - 1/2) / share, k = 1..limit. It differs from largest remainder only
    where that one lets a larger total take a row away from a cell (the Alabama paradox), and would break supersets.
    """
    seats = [
        (np.arange(min(int(limit), total)) + 0.5) / share if share > 0 else np.empty(0)
        for limit, share in zip(limits, shares, strict=True)
    ]
    cell_of_seat = np.repeat(np.arange(len(shares)), [len(seat) for seat in seats])
    chosen = np.argsort(np.concatenate(seats), kind="stable")[:total]
    return np.bincount(cell_of_seat[chosen], minlength=len(shares))


def ratio(wanted: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Return `wanted / there`, 0 where there is nothing."""
    return np.divide(wanted, there, out=np.zeros(np.shape(there)), where=np.asarray(there) > 0)

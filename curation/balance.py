"""Balance: from the mix there is to the mix that was asked for.

Each cell (a domain, or a domain in a language) gets a quota and fills it from its rows in keyed hash order, which says
nothing of quality and depends on (seed, id) alone. A quota takes the prefix whose size is nearest to it: shares are met
within half a row, a larger total gives a superset, and new shards change a selection only by the rows they add.

When a cell has less than its share, something must give, and `deficit` says what: the total (`cap`), the wish not to
see a row twice (`repeat`), or the shares (`renormalise`). The notes of the outcome say what was given up, which cell
binds, what it lacks and what would fix it. The default is `cap`: the shares hold and no row repeats. Training repeats
rows by epochs anyway, and a set without repeats can always be trained longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import polars as pl
import xxhash
from pydantic import BaseModel, ConfigDict, Field

from curation.cells import Cells, sort_into_cells
from curation.funnel import Drop, Outcome, StepRefused
from curation.shares import largest_total, ratio, water_fill, whole_rows


class BalanceSettings(BaseModel):
    """What a share is a share of, and what gives when it cannot be reached."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    by: Literal["tokens", "completion_tokens", "rows"] = "tokens"
    """Unit of shares. `tokens` counts prompt and completion, what a set's `seq_len` sums to and what training costs;
    `completion_tokens` counts what the loss sees."""
    total: int | None = Field(default=None, ge=1)
    """Size of the result in units of `by`; None takes the most that the shares and `deficit` allow."""
    deficit: Literal["cap", "repeat", "renormalise"] = "cap"
    """What gives when a domain has less than its share. `cap`: the total shrinks until every share holds. `repeat`: rows
    of scarce domains are taken up to `max_repeats` times, then the total shrinks. `renormalise`: scarce domains give all
    they have and the others fill the total in proportion to their shares; needs `total`."""
    max_repeats: int = Field(default=4, ge=1)
    """Most times a row may appear under `repeat`. Up to four passes over a text teach about as much as new text does
    (Muennighoff et al. 2023, arXiv:2305.16264); training multiplies this by its epochs."""
    min_kept_frac: float = Field(default=0.02, ge=0, le=1)
    """Refuse a balance that keeps less than this fraction of the targeted rows' size: one tiny domain decides it all."""
    seed: int = Field(default=0, ge=0, lt=2**64)
    """Key of the hash order."""


def select(
    facts: pl.DataFrame,
    positions: np.ndarray,
    targets: Mapping[str, float],
    settings: BalanceSettings,
    languages: Mapping[str, float] | None = None,
) -> Outcome:
    """Return rows whose shares by domain (and by language) are the targets'.

    Args:
        facts: the facts table; `id`, `domain`, and the columns that `settings.by` and `languages` need.
        positions: int64 positions of the rows to select from, ascending.
        targets: share of each domain, normalised here; `*` stands for all other domains together. Rows of a domain
            without a target are dropped.
        languages: share of each language among rows whose language is determined, a second axis fitted by iterative
            proportional fitting; undetermined rows (mostly code) keep the share that the domains give them.

    Returns:
        kept: ascending positions, a position repeated as often as `repeat` decided.

    Raises:
        StepRefused: no targeted domain has rows, or less than `min_kept_frac` would be kept.
        ValueError: targets are not shares, or `renormalise` comes without `total`.
    """
    if settings.deficit == "renormalise" and settings.total is None:
        raise ValueError(
            "balance: `deficit: renormalise` needs `total`, the size to fill; set it or use `deficit: cap`"
        )
    rows = facts[positions]
    cells, notes = sort_into_cells(rows, targets, languages or {}, _sizes(rows, settings))
    passes = settings.max_repeats if settings.deficit == "repeat" else 1
    quotas = _quotas(cells, passes, settings)
    copies = _fill(cells, quotas, passes, _hash_order(rows["id"], settings.seed))
    notes += _explain(cells, quotas, copies, settings)
    _refuse_next_to_nothing(cells, copies, notes, settings)
    dropped = [
        Drop(int(position), "domain_without_target" if cell < 0 else "over_target_share")
        for position, cell in zip(positions[copies == 0], cells.of_row[copies == 0], strict=True)
    ]
    return Outcome(np.repeat(positions, copies), dropped, notes)


def _sizes(rows: pl.DataFrame, settings: BalanceSettings) -> np.ndarray:
    """Return each row's size in the unit of the balance."""
    if settings.by == "rows":
        return np.ones(len(rows), dtype=np.int64)
    completion = rows["completion_tokens"].cast(pl.Int64).to_numpy()
    return (
        completion
        if settings.by == "completion_tokens"
        else completion + rows["prompt_tokens"].cast(pl.Int64).to_numpy()
    )


def _quotas(cells: Cells, passes: int, settings: BalanceSettings) -> np.ndarray:
    """Return the size that each cell is to give."""
    limits = cells.available * passes
    total = float(settings.total or np.inf)
    if settings.deficit != "renormalise":
        total = min(total, largest_total(limits, cells.shares))
    if settings.by == "rows":
        return whole_rows(limits, cells.shares, int(total + 1e-6))
    return water_fill(limits, cells.shares, total)


def _hash_order(ids: pl.Series, seed: int) -> np.ndarray:
    """Return the rows ordered by keyed hash of their ids (by place where two are equal)."""
    hashes = np.fromiter((xxhash.xxh3_64_intdigest(id.encode(), seed) for id in ids), dtype=np.uint64, count=len(ids))
    return np.argsort(hashes, kind="stable")


def _fill(cells: Cells, quotas: np.ndarray, passes: int, order: np.ndarray) -> np.ndarray:
    """Return how often each row is taken, int64 [num_rows]: whole passes over its cell, then the nearest prefix."""
    copies = np.zeros(len(cells.of_row), dtype=np.int64)
    for cell, quota in enumerate(quotas):
        members = order[cells.of_row[order] == cell]
        if quota <= 0 or not len(members):
            continue
        ends = np.cumsum(cells.sizes[members])
        whole = min(int(quota / ends[-1] + 1e-9), passes)
        copies[members] = whole
        if whole < passes:
            copies[members[: _nearest_prefix(ends, quota - whole * ends[-1])]] += 1
    return copies


def _nearest_prefix(ends: np.ndarray, quota: float) -> int:
    """Return how many rows make the prefix nearest in size to `quota`; the shorter one of two that are equally near."""
    rows = int(np.searchsorted(ends, quota, side="right"))
    before = ends[rows - 1] if rows else 0
    return rows + 1 if rows < len(ends) and ends[rows] - quota < quota - before else rows


def _explain(cells: Cells, quotas: np.ndarray, copies: np.ndarray, settings: BalanceSettings) -> list[str]:
    """Say what was kept, in which mix, what could not be reached, by how much, and what would fix it."""
    unit = settings.by.replace("_", " ")
    at_hand, kept = cells.available, np.zeros(len(cells.names))
    inside = cells.of_row >= 0
    np.add.at(kept, cells.of_row[inside], (copies * cells.sizes)[inside])
    notes = [
        f"balance keeps {kept.sum():,.0f} of {at_hand.sum():,.0f} {unit} at hand ({np.count_nonzero(copies):,} of "
        f"{len(copies):,} rows) with deficit policy `{settings.deficit}`: {_mix(cells.names, kept, cells.shares)}."
    ]
    passes = ratio(kept, at_hand)
    if (passes > 1.001).any():
        repeated = [
            f"{name} {times:.1f} times" for name, times in zip(cells.names, passes, strict=True) if times > 1.001
        ]
        notes.append(f"rows of scarce cells repeat: {', '.join(repeated)}.")
    wanted = float(settings.total or at_hand.sum())
    if settings.deficit == "renormalise":
        notes += _missed_shares(cells, kept, wanted)
    elif quotas.sum() < 0.999 * wanted - 1:
        notes += _shortfall(cells, wanted, float(quotas.sum()), unit, settings)
    return notes


def _missed_shares(cells: Cells, kept: np.ndarray, wanted: float) -> list[str]:
    """Say which cells gave all they had and still miss their share."""
    missed = [
        f"{name} gives all it has and reaches {got / kept.sum():.1%} of the target {share:.1%} "
        f"(short by {share * wanted - got:,.0f})"
        for name, got, share in zip(cells.names, kept, cells.shares, strict=True)
        if got < 0.99 * share * wanted - 1 and got < share * kept.sum()
    ]
    return [f"{'; '.join(missed)}."] if missed else []


def _shortfall(cells: Cells, wanted: float, reached: float, unit: str, settings: BalanceSettings) -> list[str]:
    """Say which cell binds, what each scarce cell lacks at the wanted total, the nearest mix there, and what fixes it."""
    passes = settings.max_repeats if settings.deficit == "repeat" else 1
    at_hand, needed = cells.available, cells.shares * wanted / passes
    names = np.array(cells.names)
    binding = np.argmin(np.where(cells.shares > 0, at_hand / np.where(cells.shares > 0, cells.shares, 1), np.inf))
    num_rows = np.bincount(cells.of_row[cells.of_row >= 0], minlength=len(names))
    scarce = [c for c in np.argsort(at_hand - needed) if needed[c] > at_hand[c] * 1.001]
    lacking = [
        f"{names[c]} lacks {needed[c] - at_hand[c]:,.0f} {unit}"
        + (f" (about {(needed[c] - at_hand[c]) * num_rows[c] / at_hand[c]:,.0f} rows)" if settings.by != "rows" else "")
        for c in scarce
    ]
    what = f"the {wanted:,.0f} {unit} asked for" if settings.total else f"all {wanted:,.0f} {unit} at hand"
    notes = [
        f"the target shares hold up to {reached:,.0f} {unit}; {names[binding]} binds with {at_hand[binding]:,.0f} {unit} "
        f"for a share of {cells.shares[binding]:.1%}. For {what} to fit the shares: {'; '.join(lacking)}."
    ]
    if settings.total:
        nearest = water_fill(at_hand * passes, cells.shares, wanted)
        notes.append(
            f"the best reachable mix at {nearest.sum():,.0f} {unit} is {_mix(cells.names, nearest, cells.shares)}."
        )
    return [*notes, _remedies(cells, names[binding], unit, settings)]


def _remedies(cells: Cells, binding: str, unit: str, settings: BalanceSettings) -> str:
    """Say what would fix a shortfall."""
    fixes = [
        f"ask for more prompts of {binding} in the manifest (`curate plan` says how many)",
        "lower its target share",
    ]
    if settings.deficit == "cap":
        reach = largest_total(cells.available * settings.max_repeats, cells.shares)
        fixes.append(
            f"allow repeats (`deficit: repeat` reaches {reach:,.0f} {unit} with {settings.max_repeats} passes)"
        )
    return f"What would fix it: {', or '.join(fixes)}, or set `total` and `deficit: renormalise` to take what there is."


def _mix(names: list[str], sizes: np.ndarray, shares: np.ndarray) -> str:
    """Say a mix, largest share first, each beside its target."""
    order = np.argsort(-sizes, kind="stable")
    return ", ".join(
        f"{names[c]} {sizes[c] / max(sizes.sum(), 1):.1%} (target {shares[c]:.1%})"
        for c in order
        if sizes[c] or shares[c]
    )


def _refuse_next_to_nothing(cells: Cells, copies: np.ndarray, notes: list[str], settings: BalanceSettings) -> None:
    """Raise StepRefused where the result is smaller than `min_kept_frac` allows, unless `total` asked for so little."""
    kept = float((copies * cells.sizes).sum())
    least = settings.min_kept_frac * float(cells.available.sum())
    if kept == 0 or kept < min(least, 0.99 * (settings.total or np.inf)):
        raise StepRefused(f"balance would keep next to nothing (lower `min_kept_frac` to allow it): {' '.join(notes)}")

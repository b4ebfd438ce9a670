"""Cells of a mix: the domains that have a target, or domain x language, with their rows and target shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from curation.facts import UNDETERMINED
from curation.funnel import StepRefused
from curation.shares import fit_shares, ratio

REST = "*"
"""Key in targets for whatever is not named; inside it the mix stays as it is."""

MAX_RESIDUAL = 0.005
"""Largest difference between a fitted and a wanted share, on either axis, that goes without a note."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows sorted into cells. A cell is named `code`, or `code/en` where language is an axis."""

    names: list[str]
    of_row: np.ndarray
    """int64 [num_rows]: the row's cell, -1 where it has no target."""
    sizes: np.ndarray
    """int64 [num_rows]: the row's size in the unit of the balance."""
    shares: np.ndarray
    """float64 [num_cells]: target shares, summing to 1."""

    @property
    def available(self) -> np.ndarray:
        """float64 [num_cells]: size at hand."""
        return np.bincount(self.of_row[self.of_row >= 0], self.sizes[self.of_row >= 0], minlength=len(self.names))


def sort_into_cells(
    rows: pl.DataFrame, targets: Mapping[str, float], languages: Mapping[str, float], sizes: np.ndarray
) -> tuple[Cells, list[str]]:
    """Sort rows into cells and give each cell its target share; notes name what has a target and no rows."""
    domain_of, domains = _axis(rows["domain"], targets)
    language_of, tongues = _axis(rows["language"], languages) if languages else (np.zeros(len(rows), np.int64), [REST])
    undetermined = UNDETERMINED not in tongues and bool(languages)
    if undetermined:
        language_of = np.where((rows["language"] == UNDETERMINED).to_numpy(), len(tongues), language_of)
        tongues = [*tongues, UNDETERMINED]
    inside = (domain_of >= 0) & (language_of >= 0)
    of_row = np.where(inside, domain_of * len(tongues) + language_of, -1)
    table = np.bincount(of_row[inside], sizes[inside], minlength=len(domains) * len(tongues)).reshape(len(domains), -1)
    domain_shares, notes = _normalise(domains, targets, table.sum(axis=1), "domain")
    shares = domain_shares[:, None]
    if languages:
        language_shares, language_notes = _language_shares(tongues, languages, table, domain_shares, undetermined)
        shares = fit_shares(table, domain_shares, language_shares)
        notes += language_notes + _residual_notes(shares, tongues, language_shares)
    names = [domain if not languages else f"{domain}/{tongue}" for domain in domains for tongue in tongues]
    return Cells(names, of_row, sizes, shares.ravel() / shares.sum()), notes


def _axis(column: pl.Series, targets: Mapping[str, float]) -> tuple[np.ndarray, list[str]]:
    """Return each row's index among the targeted names (-1 for none), and those names."""
    names = [name for name, share in targets.items() if share > 0]
    if any(not share >= 0 for share in targets.values()) or not names:
        raise ValueError(f"balance: targets are shares, none negative and not all zero; found {dict(targets)}")
    default = names.index(REST) if REST in names else -1
    index = {name: place for place, name in enumerate(names)}
    codes = column.cast(pl.String).fill_null("").replace_strict(index, default=default, return_dtype=pl.Int64)
    return codes.to_numpy(), names


def _normalise(
    names: list[str], targets: Mapping[str, float], available: np.ndarray, axis: str
) -> tuple[np.ndarray, list[str]]:
    """Return shares over the names that have rows, and a note for each that has none."""
    wanted = np.array([targets[name] for name in names], dtype=np.float64)
    wanted /= wanted.sum()
    present = available > 0
    if not present.any():
        raise StepRefused(
            f"balance: no row belongs to a targeted {axis} ({', '.join(names)}); "
            "`curate profile` shows what there is, `--balance-targets` or the manifest's `domains` what is aimed for"
        )
    notes = [
        f"{axis} {name} has no rows: its target share of {share:.1%} cannot be reached and goes to the others in "
        "proportion. Add prompts of it to the manifest."
        for name, share, there in zip(names, wanted, present, strict=True)
        if not there
    ]
    return wanted * present / (wanted * present).sum(), notes


def _language_shares(
    tongues: list[str], languages: Mapping[str, float], table: np.ndarray, domain_shares: np.ndarray, undetermined: bool
) -> tuple[np.ndarray, list[str]]:
    """Return the share of each language column; undetermined rows keep what the domains' own mixes give them."""
    if not undetermined:
        return _normalise(tongues, languages, table.sum(axis=0), "language")
    unknown = float(domain_shares @ ratio(table[:, -1], table.sum(axis=1)))
    if unknown == 1.0:
        return np.append(np.zeros(len(tongues) - 1), 1.0), [
            "no row has a determined language: the language targets are void."
        ]
    shares, notes = _normalise(tongues[:-1], languages, table[:, :-1].sum(axis=0), "language")
    return np.append(shares * (1 - unknown), unknown), notes


def _residual_notes(shares: np.ndarray, tongues: list[str], wanted: np.ndarray) -> list[str]:
    """Say which language shares cannot be had beside the domain shares."""
    return [
        f"language {tongue} reaches {got:.1%} and not {want:.1%} beside the domain shares: the domains that would have "
        "to carry it have no rows in it."
        for tongue, got, want in zip(tongues, shares.sum(axis=0), wanted, strict=True)
        if abs(got - want) > MAX_RESIDUAL
    ]

"""The held-out rows: a sample of every domain, set apart before anything is balanced.

A drafter that is measured on prompts it has nearly seen looks better than it is. So whole clusters of similar prompts are
held out, never single rows, and they are chosen before the balance step: no balance, however greedy for a scarce domain,
can put one of them into training. Small domains give a larger part of themselves, or their figures would mean nothing.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from curation.funnel import Drop, Outcome
from curation.sharding import hash_keys

REASON = "held_out"
"""`Drop.reason` of rows that go to `heldout/`: out of training, and still in the set."""


class HeldoutSettings(BaseModel):
    """How many rows of each domain are held out."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    frac: float = Field(default=0.02, ge=0, lt=1)
    """Fraction of a domain's rows; 0 holds nothing out."""
    min_rows: int = Field(default=4, ge=0)
    """Rows that a domain gives even if `frac` of it is less, but never more than a fifth of its rows."""
    max_rows: int = Field(default=1000, ge=1)
    """Most rows of a domain: an evaluation of more takes longer and says no more."""


def hold_out(
    facts: pl.DataFrame, positions: np.ndarray, clusters: np.ndarray, settings: HeldoutSettings, *, seed: int
) -> Outcome:
    """Return the rows for training as kept, and the held-out ones as dropped for REASON.

    Clusters are taken in keyed hash order until their domain has enough; one larger than what is still wanted is passed
    over. A cluster counts for the domain of its first row, and goes as a whole.

    Args:
        facts: the facts table; columns `id` and `domain`.
        positions: int64 positions of the rows to choose from, ascending.
        clusters: int64 [len(positions)], a label per cluster of similar prompts.
    """
    if settings.frac == 0 or not len(positions):
        return Outcome(positions, [])
    _, first, cluster_of, sizes = np.unique(clusters, return_index=True, return_inverse=True, return_counts=True)
    domains = facts["domain"].cast(pl.String).gather(positions).to_numpy()
    keys = _cluster_keys(facts["id"].gather(positions).to_list(), cluster_of, len(first), seed)
    chosen = np.zeros(len(first), dtype=bool)
    notes = []
    for domain in np.unique(domains):
        num_rows = int((domains == domain).sum())
        wanted = num_wanted(num_rows, settings)
        members = np.flatnonzero(domains[first] == domain)
        missing = wanted
        for cluster in members[np.argsort(keys[members], kind="stable")]:
            if sizes[cluster] <= missing:
                chosen[cluster] = True
                missing -= int(sizes[cluster])
        if missing:
            notes.append(
                f"held out {wanted - missing} of {wanted} {domain} rows: its other prompts are too alike to part"
            )
    out = chosen[cluster_of]
    return Outcome(positions[~out], [Drop(int(row), REASON) for row in positions[out]], notes)


def join_conversations(clusters: np.ndarray, openings: np.ndarray) -> np.ndarray:
    """Return cluster labels under which rows that open with the same user turn are together as well.

    A conversation's later turns quote its earlier ones in their prompts, and are alike only in that.

    Args:
        clusters: int64 [num_rows], a label per cluster of similar prompts.
        openings: int64 [num_rows], a label per first user turn.
    """
    labels = np.unique(clusters, return_inverse=True)[1]
    groups = [labels, np.unique(openings, return_inverse=True)[1]]
    while True:
        before = labels
        for group in groups:
            least = np.full(len(labels), len(labels), dtype=np.int64)
            np.minimum.at(least, group, labels)
            labels = least[group]
        if np.array_equal(labels, before):
            return labels


def num_wanted(num_rows: int, settings: HeldoutSettings) -> int:
    """Return how many of a domain's rows are held out."""
    if settings.frac == 0:
        return 0
    return min(max(round(settings.frac * num_rows), min(settings.min_rows, num_rows // 5)), settings.max_rows)


def _cluster_keys(ids: list[str], cluster_of: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Return a key per cluster: the least key of its rows, which does not depend on their order."""
    keys = np.full(num_clusters, np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(keys, cluster_of, hash_keys(ids, seed=seed, purpose="heldout"))
    return keys

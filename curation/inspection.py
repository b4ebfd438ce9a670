"""Looking at rows: a sample of those that meet some conditions, as text for a terminal.

Profiles say how much; a person who trusts numbers only after a look at ten rows uses this. The sample is drawn by hash of the
row's id, so the same command shows the same rows, and more of them when more are asked for.
"""

from __future__ import annotations

import textwrap
from typing import Any

import numpy as np
import polars as pl
import xxhash

from curation.corpus import Corpus
from curation.facts import Flag
from curation.table import printable

AXES = ("domain", "source", "language", "finish_reason")
_WIDTH = 100
_MOST_CHARS = 1500


def select(corpus: Corpus, *, count: int, flag: str | None = None, seed: int = 0, **wanted: str | None) -> list[int]:
    """Return positions of up to `count` rows that meet every condition given.

    Args:
        flag: name of a `Flag`, in lower case.
        wanted: values of `AXES`; None asks for nothing.

    Raises:
        ValueError: there is no such flag, or no such row; says which values there are.
    """
    rows = corpus.facts.with_row_index("position")
    for axis, value in wanted.items():
        if value is None:
            continue
        kept = rows.filter(pl.col(axis) == value)
        if kept.height == 0:
            there = ", ".join(str(found) for found in rows[axis].value_counts(sort=True)[axis].head(10))
            raise ValueError(f"no row with {axis} {value!r} here; there are: {there}")
        rows = kept
    if flag is not None:
        names = [known.name.lower() for known in Flag if known.name]
        if flag not in names:
            raise ValueError(f"no flag {flag!r}; there are: {', '.join(names)}")
        rows = rows.filter((pl.col("flags") & int(Flag[flag.upper()])) != 0)
        if rows.height == 0:
            raise ValueError(f"no row is flagged {flag!r} here")
    ranks = np.array(
        [xxhash.xxh3_64_intdigest(id_.encode("utf-8", "surrogatepass"), seed=seed) for id_ in rows["id"]],
        dtype=np.uint64,
    )
    return rows["position"].to_numpy()[np.argsort(ranks, kind="stable")[:count]].astype(int).tolist()


def row_text(row: dict[str, Any], fact: dict[str, Any]) -> str:
    """Return one row as text: where it is, what is known of it, what was asked and what was answered."""
    flags = [flag.name.lower() for flag in Flag if fact["flags"] & flag and flag.name]
    head = (
        f"{fact['id']}  ({fact['shard']}, line {fact['line']})\n"
        f"source {fact['source']}, domain {fact['domain']} (content says {fact['domain_predicted']}, {fact['domain_confidence']:.2f} by {fact['domain_by']}), "
        f"language {fact['language']}, {fact['prompt_tokens']:,} + {fact['completion_tokens']:,} tokens, finish {fact['finish_reason'] or 'unknown'}"
        + (f", {', '.join(flags)}" if flags else "")
    )
    parts = [printable(head)]
    for message in row["messages"]:
        parts.append(_quoted(message["role"], message["content"]))
    if row.get("reasoning"):
        parts.append(_quoted("reasoning", row["reasoning"]))
    parts.append(_quoted("completion", row["completion"] or str(row.get("tool_calls") or "")))
    return "\n".join(parts)


def _quoted(name: str, text: str) -> str:
    """Return a text indented under its name, cut in the middle where it is long."""
    if len(text) > _MOST_CHARS:
        text = (
            f"{text[: _MOST_CHARS // 2]}\n[... {len(text) - _MOST_CHARS:,} characters ...]\n{text[-_MOST_CHARS // 2 :]}"
        )
    lines = [
        part
        for line in printable(text.expandtabs(4)).split("\n")
        for part in textwrap.wrap(line, _WIDTH, replace_whitespace=False) or [""]
    ]
    return "\n".join([f"[{name}]", *(f"  {line}" for line in lines)])

"""What a set says of itself: `set.json`, the dataset card, and the rows that did not make it.

`set.json` is written last and is what training reads first: the target, the recipe as it was resolved, the funnel, counts
and shares, and a digest of every shard. It holds no time and no machine, so equal builds give equal bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl

from curation.arrow_sets import HELDOUT
from curation.documents import Documents
from curation.funnel import Drop, Funnel
from curation.writing import Labels, WrittenShard
from datagen import shards

FORMAT = 1
"""Version of the set format; raised when a reader of an older one would misread it."""

DROPPED = "dropped.parquet"
"""Beside the set: every row that was dropped, at which step, why, and what it collided with."""


@dataclass(frozen=True, slots=True)
class Part:
    """Training or held-out rows, as they are on disk."""

    shards: list[WrittenShard]
    by_domain: dict[str, dict[str, float]]
    by_source: dict[str, dict[str, float]]

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        return sum(shard.tokens for shard in self.shards)

    def describe(self) -> dict[str, Any]:
        """Return what `set.json` says of this part."""
        return {
            "rows": self.rows,
            "tokens": self.tokens,
            "trained_tokens": sum(shard.trained_tokens for shard in self.shards),
            "by_domain": self.by_domain,
            "by_source": self.by_source,
            "shards": [asdict(shard) for shard in self.shards],
        }


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the rows came from, for `set.json`."""

    target: dict[str, Any] | None
    tokenizer: dict[str, Any]
    recipe: dict[str, Any]
    input: dict[str, Any]
    target_shares: dict[str, float]
    notes: list[str] = field(default_factory=list)


def part(written: list[WrittenShard], documents: Documents, labels: Labels, chosen: np.ndarray) -> Part:
    """Return the counts of the documents at `chosen` (with repeats) by domain and source."""
    return Part(written, _counts(documents, labels.domain, chosen), _counts(documents, labels.source, chosen))


def card(
    training: Part, heldout: Part | None, funnel: Funnel, cut: dict[str, int], provenance: Provenance
) -> dict[str, Any]:
    """Return `set.json`."""
    return {
        "format": FORMAT,
        "target": provenance.target,
        "tokenizer": provenance.tokenizer,
        "recipe": provenance.recipe,
        "input": provenance.input,
        "target_shares": provenance.target_shares,
        "funnel": describe_funnel(funnel),
        "notes": provenance.notes,
        "cut": cut,
        **training.describe(),
        "heldout": None if heldout is None else heldout.describe(),
        "versions": {name: metadata.version(name) for name in ("draftmill", "pyarrow", "polars", "numpy")},
    }


def describe_funnel(funnel: Funnel) -> dict[str, Any]:
    """Return the funnel with what went into each step, so that `rows_in - dropped = kept` can be checked line by line."""
    steps, rows_in = [], funnel.num_rows
    for step, kept, dropped in funnel.steps:
        steps.append({"step": step, "rows_in": rows_in, "kept": kept, "dropped": dropped})
        rows_in = kept
    return {"rows_in": funnel.num_rows, "steps": steps, "rows_out": rows_in}


def write_dropped(path: Path, facts: pl.DataFrame, steps: list[tuple[str, list[Drop]]]) -> None:
    """Write one row per dropped row: where it was, at which step it went, and why."""
    drops = [(step, drop) for step, dropped in steps for drop in dropped]
    rows = np.array([drop.row for _, drop in drops], dtype=np.int64)
    where = facts.select("id", "shard", "line", "source", "domain")[rows] if len(rows) else facts.select(
        "id", "shard", "line", "source", "domain"
    ).clear()  # fmt: skip
    why = pl.DataFrame(
        {
            "step": [step for step, _ in drops],
            "reason": [drop.reason for _, drop in drops],
            "collided_with": [drop.collided_with for _, drop in drops],
            "score": [drop.score for _, drop in drops],
            "detail": [drop.detail for _, drop in drops],
        },
        schema={
            "step": pl.String,
            "reason": pl.String,
            "collided_with": pl.String,
            "score": pl.Float64,
            "detail": pl.String,
        },
    )
    where.with_columns(pl.col("shard").cast(pl.String)).hstack(why).write_parquet(path)


def write_readme(folder: Path, name: str, card: dict[str, Any]) -> None:
    """Write the dataset card."""
    shards.publish(folder / "README.md", [_readme(name, card).encode()])


def _counts(documents: Documents, labels: Any, chosen: np.ndarray) -> dict[str, dict[str, float]]:
    """Return rows, tokens, trained tokens and share of tokens by label, largest first."""
    lengths = documents.length[chosen].astype(np.int64)
    names, code = np.unique(np.array(labels, dtype=object)[chosen].astype(str), return_inverse=True)
    tokens = np.bincount(code, weights=lengths, minlength=len(names)).astype(np.int64)
    trained = np.bincount(code, weights=lengths - documents.boundary[chosen], minlength=len(names)).astype(np.int64)
    rows = np.bincount(code, minlength=len(names))
    total = max(int(tokens.sum()), 1)
    return {
        str(names[i]): {
            "rows": int(rows[i]),
            "tokens": int(tokens[i]),
            "trained_tokens": int(trained[i]),
            "share": round(int(tokens[i]) / total, 6),
        }
        for i in sorted(range(len(names)), key=lambda i: (-tokens[i], names[i]))
    }


def _readme(name: str, card: dict[str, Any]) -> str:
    target = (card["target"] or {}).get("model", "an unnamed target")
    domains = "\n".join(
        f"| {domain} | {c['rows']:,} | {c['tokens']:,} | {100 * c['share']:.1f}% | {_target_share(card, domain)} |"
        for domain, c in card["by_domain"].items()
    )
    funnel = "\n".join(
        f"| {s['step']} | {s['rows_in']:,} | {s['kept']:,} | {', '.join(f'{k} {v:,}' for k, v in s['dropped'].items())} |"
        for s in card["funnel"]["steps"]
    )
    notes = "".join(f"- {note}\n" for note in card["notes"])
    heldout = f"{card['heldout']['rows']:,} rows in `{HELDOUT}/`" if card["heldout"] else "no rows"
    return f"""---
configs:
- config_name: default
  data_files:
  - split: train
    path: data-*.arrow
---

# {name}

Prompts answered by {target}, as token ids, to train a speculative-decoding drafter on: {card["rows"]:,} rows,
{card["tokens"]:,} tokens ({card["trained_tokens"]:,} of them generated by the target), {heldout} held out by prompt cluster.

```python
from datasets import load_from_disk

train, heldout = load_from_disk("{name}"), load_from_disk("{name}/{HELDOUT}")
```

`input_ids` is prompt and completion as the engine saw them, `loss_mask` is 1 on what the target generated, `id`, `source`
and `domain` say where a row comes from. `set.json` has the recipe, the target and a digest of every file; `{DROPPED}`
has every row that was left out, with its reason.

| domain | rows | tokens | share | target |
|---|---|---|---|---|
{domains}

| step | rows in | kept | dropped |
|---|---|---|---|
{funnel}

{notes}"""


def _target_share(card: dict[str, Any], domain: str) -> str:
    shares = card["target_shares"]
    return f"{100 * shares[domain] / sum(shares.values()):.1f}%" if domain in shares else ""


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value, keys sorted."""
    import hashlib

    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()

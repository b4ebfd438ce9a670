"""From decisions to files: shards, cards and the list of drops of a set, `set.json` last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation import set_card
from curation.arrow_sets import HELDOUT, SET_CARD, shard_name
from curation.corpus import Corpus
from curation.documents import Documents
from curation.funnel import Drop, Funnel
from curation.recipe import Recipe
from curation.sharding import deal, hash_keys
from curation.target import Origin
from curation.writing import Labels, WrittenShard, write_folder_cards, write_shard
from datagen import shards

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Decided:
    """What the steps decided, ready to be written."""

    documents: Documents
    labels: Labels
    training: np.ndarray
    """int64: documents to train on, one that repeats as often as it repeats."""
    heldout: np.ndarray
    """int64: documents that are held out."""
    funnel: Funnel
    dropped: list[tuple[str, list[Drop]]]
    """Drops by step, each naming its row."""
    notes: list[str]
    target_shares: dict[str, float]
    tokenizer: dict[str, Any]
    """Digests of what rendered the rows without ids."""


def write_set(
    folder: Path, name: str, decided: Decided, corpus: Corpus, origin: Origin, recipe: Recipe, progress: Progress
) -> dict[str, Any]:
    """Write a set into `folder` and return its `set.json`. Shards that are there already are written again, the same.

    Args:
        name: what the set will be called.
    """
    documents, training = decided.documents, decided.training
    trained = _write_part(folder, decided, training, recipe.num_shards, recipe.seed, "train", progress)
    held = None
    if len(decided.heldout):
        (folder / HELDOUT).mkdir(exist_ok=True)
        held = _write_part(folder / HELDOUT, decided, decided.heldout, 1, recipe.seed, "heldout", progress)
    set_card.write_dropped(folder / set_card.DROPPED, corpus.facts, decided.dropped)
    if corpus.counts.rejected:
        shards.publish(folder / "rejected.jsonl", [corpus.rejected.read_bytes()])
    distinct = np.unique(training)
    cut = {"rows": int((documents.cut[distinct] > 0).sum()), "tokens": int(documents.cut[distinct].sum())}
    card = set_card.card(trained, held, decided.funnel, cut, _provenance(decided, corpus, origin, recipe))
    set_card.write_readme(folder, name, card)
    shards.write_card(folder / SET_CARD, card)
    return card


def labels_of(facts: pl.DataFrame, documents: Documents) -> Labels:
    """Return what the set says of each document; a turn of a row's history is named after the row."""
    table = facts.select("id", pl.col("source", "domain").cast(pl.String))[documents.row]
    named = zip(table["id"].to_list(), documents.turn.tolist(), strict=True)
    ids = [id_ if turn < 0 else f"{id_}#{turn}" for id_, turn in named]
    return Labels(ids, table["source"].to_list(), table["domain"].to_list())


def _write_part(
    folder: Path, decided: Decided, chosen: np.ndarray, num_shards: int, seed: int, split: str, progress: Progress
) -> set_card.Part:
    """Deal the documents at `chosen` to shards and write them with their folder's cards."""
    documents, labels = decided.documents, decided.labels
    keys = hash_keys(_names_with_repeats(labels.id, chosen), seed=seed, purpose="order")
    _, domains = np.unique(np.array(labels.domain, dtype=object)[chosen].astype(str), return_inverse=True)
    dealt = deal(documents.length[chosen], domains, keys, num_shards)
    written: list[WrittenShard] = []
    for index, members in enumerate(dealt):
        written.append(write_shard(folder / shard_name(index, num_shards), documents, labels, chosen[members]))
        progress(f"write {split}", index + 1, num_shards)
    write_folder_cards(
        folder,
        num_shards,
        description=f"Prompts and completions as token ids ({split}), made by draftmill.",
        fingerprint=set_card.digest([shard.sha256 for shard in written])[:16],
        split=split,
    )
    return set_card.part(written, documents, labels, chosen)


def _names_with_repeats(ids: Any, chosen: np.ndarray) -> list[str]:
    """Return a distinct name per chosen document: its id, and which repeat of it this is."""
    seen: dict[int, int] = {}
    names = []
    for index in chosen.tolist():
        seen[index] = seen.get(index, -1) + 1
        names.append(f"{ids[index]}\0{seen[index]}")
    return names


def _provenance(decided: Decided, corpus: Corpus, origin: Origin, recipe: Recipe) -> set_card.Provenance:
    counts = corpus.counts
    return set_card.Provenance(
        target=origin.target or _target_of(recipe),
        tokenizer={**decided.tokenizer, **origin.tokenizer},
        recipe=recipe.model_dump(mode="json"),
        input={
            "folder": str(corpus.folder),
            "digest": corpus.digest,
            "shards": len(corpus.shards),
            "lines": {name: getattr(counts, name) for name in ("lines", "accepted", "repaired", "rejected", "blank")},
            "rejected": corpus.rejects,
            "run": origin.run,
        },
        target_shares=decided.target_shares,
        notes=decided.notes,
    )


def _target_of(recipe: Recipe) -> dict[str, Any] | None:
    """Return the target where only the recipe or the command line names one."""
    settings = recipe.tokenization
    if settings.tokenizer is None:
        return None
    local = Path(settings.tokenizer)
    return {
        "model": str(local.resolve()) if local.is_dir() else settings.tokenizer,
        "chat_template_kwargs": settings.chat_template_kwargs,
        "trust_remote_code": settings.trust_remote_code,
    }

"""A corpus: a folder of completion shards, read once into facts and signatures.

Each shard is read in one pass that leaves a Parquet file of facts, a file of MinHash signatures and a card in a cache
folder, keyed by the shard's digest and the settings. Profile, filters, deduplication and balance ask those; the text is
read again only for the rows that someone wants to see or to tokenise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation.facts import ReadingSettings

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes to read)."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the lines: lines = accepted + repaired + rejected + blank."""

    lines: int = 0
    accepted: int = 0
    repaired: int = 0
    rejected: int = 0
    blank: int = 0


@dataclass(frozen=True)
class Corpus:
    """A folder of shards as facts. Rows are named by their position in `facts`: shard order, then line order."""

    folder: Path
    shards: list[Path]
    counts: Counts
    rejects: dict[str, int]
    """Rejected lines by reason."""
    facts: pl.DataFrame
    """One row per accepted or repaired line; columns as `facts.FACTS_SCHEMA` plus `domain`."""
    signatures: np.ndarray
    """uint32 [num_rows, num_perm], memory-mapped; all ones (2**32 - 1) where the signed text has no word."""
    settings: ReadingSettings

    def rows(self, positions: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows at `positions`, in the order asked, as `rows.normalise` gives them, read by offset."""
        raise NotImplementedError

    def prompts(self, positions: Iterable[int]) -> Iterator[str]:
        """Yield the text that deduplication compares: system and user turns joined by newlines."""
        raise NotImplementedError

    def completions(self, positions: Iterable[int]) -> Iterator[str]:
        """Yield what the target said, reasoning excluded."""
        raise NotImplementedError


def open_corpus(
    folder: Path,
    *,
    settings: ReadingSettings = ReadingSettings(),
    cache: Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Corpus:
    """Read what is new in `folder` and return its corpus.

    Args:
        settings: what facts and signatures are made of.
        cache: folder for facts; None takes `folder/.facts`, or a user cache where `folder` cannot be written.
        workers: processes that read shards. The result does not depend on it.

    Raises:
        ValueError: the folder is missing or holds no shard.
    """
    raise NotImplementedError

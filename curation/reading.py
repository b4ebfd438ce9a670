"""Reading a shard once: text in, and facts, signatures, rejected lines and a card out, in a cache folder.

The card is written last and names the digest of the shard's bytes and of the settings, so facts are either whole and about
this very shard or made again. A shard that still grows has another size each time, and is read anew up to its last full line.
Batches bound memory, whatever the size of a shard.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import xxhash

from curation import rows
from curation.classify import model_digest
from curation.facts import FACTS_SCHEMA, FACTS_VERSION, ReadingSettings
from curation.files import read_lines
from curation.lines import Line
from curation.measure import ReadRow, measure
from datagen import shards

UNKNOWN_SOURCE = "unknown"
BATCH_ROWS = 512
BATCH_BYTES = 2 * 1024 * 1024
"""A batch is measured when it has this many rows or bytes of lines."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the lines: lines = accepted + repaired + rejected + blank."""

    lines: int = 0
    accepted: int = 0
    repaired: int = 0
    rejected: int = 0
    blank: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: value + getattr(other, name) for name, value in asdict(self).items()})


@dataclass(frozen=True, slots=True)
class ShardCard:
    """What was read from one shard."""

    digest: str
    """xxh3_128 of the shard's bytes."""
    size: int
    mtime_ns: int
    counts: Counts
    rejects: dict[str, int] = field(default_factory=dict)
    """Rejected lines by reason."""

    @property
    def num_rows(self) -> int:
        """Rows of facts."""
        return self.counts.accepted + self.counts.repaired


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files that hold what is known of one shard."""

    facts: Path
    signatures: Path
    rejected: Path
    card: Path

    @classmethod
    def of(cls, shard: Path, cache: Path, settings: ReadingSettings, suffix: str = "") -> ShardFiles:
        """Name the files of `shard` under `settings` in `cache`; `suffix` names those that are still being written."""
        stem = f"{shard.name}.{settings_digest(settings)}"
        return cls(*(cache / f"{stem}{kind}{suffix}" for kind in (".parquet", ".u32", ".rejected.jsonl", ".json")))


def settings_digest(settings: ReadingSettings) -> str:
    """Return eight hexadecimal digits that change whenever facts or signatures would."""
    made_of: dict[str, Any] = {
        "version": FACTS_VERSION,
        "model": model_digest(),
        **settings.model_dump(mode="json", exclude={"source_domains", "labels"}),
    }
    if settings.labels is not None:
        made_of["labels"] = hashlib.sha256(settings.labels.read_bytes()).hexdigest()
    return hashlib.sha256(orjson.dumps(made_of, option=orjson.OPT_SORT_KEYS)).hexdigest()[:8]


def known(shard: Path, files: ShardFiles) -> ShardCard | None:
    """Return the card of a shard that has been read and has not changed since, or None."""
    try:
        card = orjson.loads(files.card.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    found = ShardCard(**{**card, "counts": Counts(**card["counts"])})
    status = shard.stat()
    if (status.st_size, status.st_mtime_ns) == (found.size, found.mtime_ns):
        return found
    if status.st_size != found.size or digest_of(shard) != found.digest:
        return None
    moved = ShardCard(found.digest, status.st_size, status.st_mtime_ns, found.counts, found.rejects)
    _write_card(files.card, moved)
    return moved


def read_shard(shard: Path, cache: Path, settings: ReadingSettings) -> ShardCard:
    """Read one shard and leave its facts in `cache`; return its card.

    Two processes may read the same shard: each writes files of its own and renames them, and both write the same.
    """
    files, begun = ShardFiles.of(shard, cache, settings), ShardFiles.of(shard, cache, settings, f".{os.getpid()}.tmp")
    status = shard.stat()
    digest = digest_of(shard)
    tally: Counter[str] = Counter()
    rejects: Counter[str] = Counter()
    files.card.unlink(missing_ok=True)
    with (
        pq.ParquetWriter(begun.facts, FACTS_SCHEMA, compression="zstd") as facts,
        begun.signatures.open("wb") as signatures,
        begun.rejected.open("wb") as rejected,
    ):
        for batch in _batches(_rows_of(shard, tally, rejects, rejected)):
            measured, signed = measure(batch, settings)
            facts.write_batch(measured)
            signatures.write(np.ascontiguousarray(signed).tobytes())
    os.replace(begun.facts, files.facts)
    os.replace(begun.signatures, files.signatures)
    os.replace(begun.rejected, files.rejected)
    card = ShardCard(digest, status.st_size, status.st_mtime_ns, Counts(**tally), dict(rejects))
    _write_card(files.card, card)
    return card


def digest_of(shard: Path) -> str:
    """Return the xxh3_128 of a file's bytes."""
    hasher = xxhash.xxh3_128()
    with shard.open("rb") as file:
        while block := file.read(1024 * 1024):
            hasher.update(block)
    return hasher.hexdigest()


def source_of(shard: Path) -> str:
    """Return the source of rows that name none: the file's name, or `unknown` in shards named as ours."""
    return UNKNOWN_SOURCE if shards.shard_index(shard) is not None else shard.name.split(".")[0]


def row_of(line: Line) -> tuple[dict[str, Any] | None, str | None]:
    """Return (row, None), or (None, reason) for a line that holds no completion."""
    if line.value is None:
        return None, line.reason
    try:
        return rows.normalise(line.value), None
    except rows.NotACompletion as error:
        return None, str(error)


def _rows_of(shard: Path, tally: Counter[str], rejects: Counter[str], rejected: Any) -> Iterator[ReadRow]:
    """Yield the rows of a shard; count every line and write down those that are rejected."""
    source = source_of(shard)
    for line in read_lines(shard):
        tally["lines"] += 1
        if line.blank:
            tally["blank"] += 1
            continue
        row, reason = row_of(line)
        if row is None:
            tally["rejected"] += 1
            rejects[str(reason)] += 1
            note = {
                "shard": shard.name,
                "line": line.number,
                "offset": line.offset,
                "reason": reason,
                "preview": line.preview,
            }
            rejected.write(orjson.dumps(note) + b"\n")
            continue
        tally["repaired" if line.repaired else "accepted"] += 1
        row["source"] = row["source"] or source
        yield ReadRow(line, row)


def _batches(read: Iterator[ReadRow]) -> Iterator[list[ReadRow]]:
    batch: list[ReadRow] = []
    size = 0
    for item in read:
        batch.append(item)
        size += item.line.num_bytes
        if len(batch) >= BATCH_ROWS or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _write_card(path: Path, card: ShardCard) -> None:
    shards.write_card(path, asdict(card))

"""A corpus: a folder of completion shards, read once into facts and signatures.

Each shard is read in one pass that leaves a Parquet file of facts, a file of MinHash signatures and a card in a cache
folder, keyed by the shard's digest and the settings. Profile, filters, deduplication and balance ask those; the text is
read again only for the rows that someone wants to see or to tokenise.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation import pools, rows
from curation.facts import OTHER, ReadingSettings
from curation.files import is_seekable, list_files, read_lines
from curation.lines import Line, read_line
from curation.reading import Counts, ShardCard, ShardFiles, known, read_shard, row_of, settings_digest
from datagen import shards as shard_format

__all__ = ["Corpus", "Counts", "open_corpus"]

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes to read)."""

CACHE_FOLDER = ".facts"
LABELS_FILE = ".labels.jsonl"
"""Labels that a person gave with `curate label`; used wherever they lie in the folder."""

REJECTED_FILE = "rejected.jsonl"
"""Every rejected line of the corpus: shard, line, byte offset, reason and the line's beginning."""

_WORTH_A_POOL_BYTES = 32 * 1024 * 1024
"""Below this, starting processes costs more than they save."""


@dataclass(frozen=True)
class Corpus:
    """A folder of shards as facts. Rows are named by their position in `facts`: shard order, then line order."""

    folder: Path
    shards: list[Path]
    counts: Counts
    rejects: dict[str, int]
    """Rejected lines by reason."""
    facts: pl.DataFrame
    """One row per accepted or repaired line; columns as `facts.FACTS_SCHEMA` plus `shard` and `domain`."""
    signatures: np.ndarray
    """uint32 [num_rows, num_perm], memory-mapped; all ones (2**32 - 1) where the signed text has no word."""
    settings: ReadingSettings
    digest: str
    """Of the shards' bytes and the settings: equal corpora have equal facts."""
    rejected: Path
    """File of rejected lines; empty where there are none."""

    def rows(self, positions: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows at `positions`, in the order asked, as `rows.normalise` gives them, read by offset.

        `id`, `source` and `domain` are the facts' (filled where the row has none, resolved by precedence).
        """
        by_name = {path.name: path for path in self.shards}
        wanted = np.fromiter(positions, dtype=np.int64)
        columns = ("shard", "line", "offset", "num_bytes", "id", "source", "domain")
        with _LineReader() as reader:
            for begin in range(0, len(wanted), 10_000):
                facts = self.facts.select(columns)[wanted[begin : begin + 10_000]]
                for shard, number, offset, size, id_, source, domain in facts.iter_rows():
                    row, reason = row_of(reader.line(by_name[shard], number, offset, size))
                    if row is None:
                        raise ValueError(
                            f"{by_name[shard]} has changed since it was read (line {number}: {reason}); run again"
                        )
                    yield {**row, "id": id_, "source": source, "domain": domain}

    def prompts(self, positions: Iterable[int]) -> Iterator[str]:
        """Yield the text that deduplication compares: system and user turns joined by newlines."""
        return (rows.prompt_text(row) for row in self.rows(positions))

    def completions(self, positions: Iterable[int]) -> Iterator[str]:
        """Yield what the target said, reasoning excluded."""
        return (row["completion"] for row in self.rows(positions))


def open_corpus(
    folder: Path,
    *,
    settings: ReadingSettings | None = None,
    cache: Path | None = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> Corpus:
    """Read what is new in `folder` and return its corpus.

    Args:
        settings: what facts and signatures are made of; None takes the defaults.
        cache: folder for facts; None takes `folder/.facts`, or a user cache where `folder` cannot be written.
        workers: processes that read shards. The result does not depend on it.

    Raises:
        ValueError: the folder is missing or holds no shard.
    """
    settings = settings or ReadingSettings()
    if settings.labels is None and (folder / LABELS_FILE).is_file():
        settings = settings.model_copy(update={"labels": folder / LABELS_FILE})
    paths = list_files(folder)
    cache = cache or default_cache(folder)
    cache.mkdir(parents=True, exist_ok=True)
    cards = _read_all(paths, cache, settings, workers, progress)
    digest = hashlib.sha256(
        "\n".join([settings_digest(settings), *(card.digest for card in cards)]).encode()
    ).hexdigest()[:32]
    files = [ShardFiles.of(path, cache, settings) for path in paths]
    return Corpus(
        folder=folder,
        shards=paths,
        counts=sum((card.counts for card in cards), Counts()),
        rejects=dict(sum((Counter(card.rejects) for card in cards), Counter()).most_common()),
        facts=_gather_facts(paths, files, cards, settings),
        signatures=_gather_signatures(cache / f"all.{digest}.u32", files, cards, settings.num_perm),
        settings=settings,
        digest=digest,
        rejected=_gather_rejected(cache / REJECTED_FILE, files),
    )


def default_cache(folder: Path) -> Path:
    """Return `folder/.facts`, or a folder in the user's cache where `folder` cannot be written."""
    inside = folder / CACHE_FOLDER
    if os.access(inside if inside.exists() else folder, os.W_OK):
        return inside
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "draftmill" / hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]


def _read_all(
    paths: list[Path], cache: Path, settings: ReadingSettings, workers: int, progress: Progress | None
) -> list[ShardCard]:
    """Return the card of every shard, reading those that are new or changed."""
    found = {path: known(path, ShardFiles.of(path, cache, settings)) for path in paths}
    cards = {path: card for path, card in found.items() if card is not None}
    todo = [path for path in paths if path not in cards]
    sizes = {path: path.stat().st_size for path in todo}
    total, done = sum(sizes.values()), 0
    workers = workers if total > _WORTH_A_POOL_BYTES else 1
    for path, card in pools.run(read_one, todo, start=Reading, start_args=(cache, settings), workers=workers):
        cards[path] = card
        done += sizes[path]
        if progress is not None:
            progress(done, total)
    return [cards[path] for path in paths]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a worker that reads shards holds."""

    cache: Path
    settings: ReadingSettings


def read_one(reading: Reading, path: Path) -> tuple[Path, ShardCard]:
    """Return a shard and its card; what is known of it already is not read again."""
    card = known(path, ShardFiles.of(path, reading.cache, reading.settings))
    return path, card or read_shard(path, reading.cache, reading.settings)


def _gather_facts(
    paths: list[Path], files: list[ShardFiles], cards: list[ShardCard], settings: ReadingSettings
) -> pl.DataFrame:
    """Join the facts of all shards, and resolve what depends on the corpus: names of shards, missing ids, domains."""
    facts = pl.concat([pl.read_parquet(file.facts) for file in files], rechunk=True)
    names = [path.name for path in paths]
    codes = np.repeat(np.arange(len(paths), dtype=np.uint32), [card.num_rows for card in cards])
    shard = pl.Series("shard", codes).replace_strict(range(len(names)), names, return_dtype=pl.Enum(names))
    facts = facts.with_columns(shard)
    facts = facts.with_columns(
        pl.col("id").fill_null(pl.concat_str(pl.col("shard").cast(pl.String), pl.col("line"), separator=":"))
    )
    return facts.with_columns(_resolved_domain(settings.source_domains).alias("domain"))


def _resolved_domain(source_domains: dict[str, str]) -> pl.Expr:
    """Return the domain by precedence: the row's own, its source's in the manifest, then the content's."""
    named = pl.lit(None, dtype=pl.String)
    if source_domains:
        sources, domains = list(source_domains), list(source_domains.values())
        named = pl.col("source").replace_strict(sources, domains, default=None, return_dtype=pl.String)
    return pl.coalesce(pl.col("domain_manifest"), named, pl.col("domain_predicted"), pl.lit(OTHER))


def _gather_signatures(path: Path, files: list[ShardFiles], cards: list[ShardCard], num_perm: int) -> np.ndarray:
    """Join the signatures of all shards in one memory-mapped file, written once per set of shards."""
    num_rows = sum(card.num_rows for card in cards)
    if num_rows == 0:
        return np.empty((0, num_perm), dtype=np.uint32)
    if not path.exists() or path.stat().st_size != num_rows * num_perm * 4:
        for stale in path.parent.glob("all.*.u32"):
            stale.unlink()
        temporary = path.with_name(f".{path.name}.tmp")
        with temporary.open("wb") as joined:
            for file in files:
                with file.signatures.open("rb") as signatures:
                    shutil.copyfileobj(signatures, joined, 1024 * 1024)
        os.replace(temporary, path)
    return np.memmap(path, dtype=np.uint32, mode="r", shape=(num_rows, num_perm))


def _gather_rejected(path: Path, files: list[ShardFiles]) -> Path:
    """Join the rejected lines of all shards in one file."""
    shard_format.publish(path, (line for file in files if file.rejected.exists() for line in file.rejected.open("rb")))
    return path


class _LineReader:
    """Reads single lines again: by offset from plain shards, by number (one shard held at a time) from the others."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: Any = None
        self._lines: dict[int, Line] = {}

    def __enter__(self) -> _LineReader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def line(self, path: Path, number: int, offset: int, size: int) -> Line:
        """Return one line of a shard."""
        if path != self._path:
            self._open(path)
        if self._file is None:
            return self._lines.get(number) or Line(number, offset, size, None, reason="gone")
        self._file.seek(offset)
        return read_line(number, offset, self._file.read(size))

    def _open(self, path: Path) -> None:
        if self._file is not None:
            self._file.close()
        self._path, self._file, self._lines = path, None, {}
        if is_seekable(path):
            self._file = path.open("rb")
        else:
            self._lines = {line.number: line for line in read_lines(path)}

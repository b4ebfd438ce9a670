"""Documents: what tokenisation leaves on disk until the set is written.

A document is one row of the set to be: the token ids of a prompt and of one answer, and the boundary between them. Each
chunk of rows leaves a flat file of int32 ids and, published after it, an index of where each document lies in it and
which rows gave none. An index that is there is complete, so a build that was killed goes on with the next chunk.
Reading maps the files: memory is bounded by the index, not by the text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import xxhash

from curation.funnel import Drop
from datagen import shards

_INDEX_SCHEMA = pa.schema(
    [
        ("row", pa.int64()),
        ("turn", pa.int32()),
        ("offset", pa.int64()),  # in tokens, from the start of the chunk's file
        ("length", pa.int32()),
        ("boundary", pa.int32()),
        ("cut", pa.int32()),
        ("opening", pa.int64()),
        ("digest", pa.int64()),
        ("reason", pa.string()),  # null for a document; why there is none for a row without
        ("detail", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Document:
    """Token ids of one prompt and one answer."""

    row: int
    """Position in the facts table."""
    turn: int
    """0-based assistant turn that is learned from; -1 is the row's own completion."""
    input_ids: np.ndarray
    """int32 [length]: prompt, then completion."""
    boundary: int
    """Where the completion begins."""
    cut: int = 0
    """Completion tokens that a length limit cut off the end."""
    opening: int = 0
    """Hash of the conversation's first user turn; all turns of a conversation share it."""


@dataclass(slots=True)
class TokenizedChunk:
    """What one chunk of rows became: each row has documents or a drop."""

    documents: list[Document] = field(default_factory=list)
    dropped: list[Drop] = field(default_factory=list)


@dataclass(frozen=True)
class Documents:
    """All documents of a build, ids mapped from disk. Parallel arrays, one entry per document."""

    row: np.ndarray
    """int64: position in the facts table."""
    turn: np.ndarray
    """int32: assistant turn, -1 for the row's own completion."""
    length: np.ndarray
    """int32: prompt and completion tokens."""
    boundary: np.ndarray
    """int32: prompt tokens."""
    cut: np.ndarray
    """int32: completion tokens cut off."""
    opening: np.ndarray
    """int64: hash of the conversation's first user turn."""
    digest: np.ndarray
    """int64: hash of ids and boundary; equal documents have equal ones."""
    dropped: list[Drop]
    _chunk: np.ndarray
    _offset: np.ndarray
    _tokens: list[np.ndarray]

    def __len__(self) -> int:
        return len(self.row)

    def distinct(self) -> np.ndarray:
        """Return the documents without earlier turns that another document repeats, ascending.

        Where every turn of a conversation is a row of its own, each row's history holds the other rows' answers.
        """
        own_first = np.lexsort((np.arange(len(self)), self.turn >= 0))
        first = np.unique(self.digest[own_first], return_index=True)[1]
        repeated = np.ones(len(self), dtype=bool)
        repeated[own_first[first]] = False
        return np.flatnonzero(~(repeated & (self.turn >= 0)))

    def input_ids(self, index: int) -> np.ndarray:
        """Return the ids of document `index`, int32 [length]."""
        start = self._offset[index]
        return self._tokens[self._chunk[index]][start : start + self.length[index]]


def write_chunk(folder: Path, chunk: int, tokenized: TokenizedChunk) -> None:
    """Write the documents of a chunk; it counts as done once its index is there."""
    tokens_path, index_path = _paths(folder, chunk)
    shards.publish(tokens_path, (document.input_ids.astype("<i4").tobytes() for document in tokenized.documents))
    lengths = [len(document.input_ids) for document in tokenized.documents]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[:-1] if lengths else np.zeros(0, np.int64)
    rows = [
        (d.row, d.turn, int(offset), length, d.boundary, d.cut, d.opening, _digest(d), None, None)
        for d, offset, length in zip(tokenized.documents, offsets, lengths, strict=True)
    ] + [(drop.row, 0, 0, 0, 0, 0, 0, 0, drop.reason, drop.detail) for drop in tokenized.dropped]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_INDEX_SCHEMA)
    batch = pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, _INDEX_SCHEMA, strict=True)], _INDEX_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _INDEX_SCHEMA) as writer:
        writer.write_batch(batch)
    shards.publish(index_path, [sink.getvalue().to_pybytes()])


def is_written(folder: Path, chunk: int) -> bool:
    """Return whether a chunk is complete."""
    return _paths(folder, chunk)[1].is_file()


def load(folder: Path, chunks: Iterable[int]) -> Documents:
    """Map the documents of complete chunks, in the order of `chunks` and of the rows within."""
    tables, tokens, dropped = [], [], []
    for place, chunk in enumerate(chunks):
        tokens_path, index_path = _paths(folder, chunk)
        table = pa.ipc.open_stream(index_path.read_bytes()).read_all()
        has_document = pa.compute.is_null(table["reason"])
        for entry in table.filter(pa.compute.invert(has_document)).to_pylist():
            dropped.append(Drop(entry["row"], entry["reason"], detail=entry["detail"]))
        table = table.filter(has_document)
        tables.append(table.append_column("chunk", pa.array(np.full(len(table), place, np.int32))))
        is_empty = os.stat(tokens_path).st_size == 0  # an empty file cannot be mapped
        tokens.append(np.zeros(0, np.int32) if is_empty else np.memmap(tokens_path, "<i4", mode="r"))
    schema = _INDEX_SCHEMA.append(pa.field("chunk", pa.int32()))
    whole = pa.concat_tables(tables) if tables else schema.empty_table()
    names = ("row", "turn", "length", "boundary", "cut", "opening", "digest", "chunk", "offset")
    column = {name: whole[name].to_numpy() for name in names}
    return Documents(
        column["row"], column["turn"], column["length"], column["boundary"], column["cut"], column["opening"],
        column["digest"], dropped, column["chunk"], column["offset"], tokens,
    )  # fmt: skip


def _digest(document: Document) -> int:
    """Return 64 bits of ids and boundary as a signed number."""
    ids = xxhash.xxh3_64_intdigest(document.input_ids.astype("<i4").tobytes(), seed=document.boundary)
    return ids - (1 << 63)


def _paths(folder: Path, chunk: int) -> tuple[Path, Path]:
    return folder / f"{chunk:06d}.tokens", folder / f"{chunk:06d}.index"

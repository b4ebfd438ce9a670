"""Files become rows, whatever shape they are in; what cannot be read is counted by reason and never stops a plan.

Reading streams: a file's rows are parsed as they are asked for. Names lie, so content decides: JSON arrays and pretty-printed
objects under `.jsonl`, one object per line under `.json`, byte-order marks, files that were never fetched from Git LFS.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, cast

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""What is read; the text forms also with .gz or .zst behind."""

Located = tuple[str, dict[str, Any]]
"""A row, and where it was found, for a person."""

_PEEK_BYTES = 1 << 16
_CHUNK_CHARS = 1 << 20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BETWEEN_VALUES = re.compile(r"[\s,\[\]\ufeff]*")
_CUT_MARGIN_CHARS = 16
"""How close to the end of what was read a parse error may be for the cause to be that more is to come: the longest escape."""

_QUOTED_FIELD = re.compile(rb'(?:^|[\t\n])"(?:[^"]|"")*"(?=[\t\r\n]|$)')


class Problems:
    """What could not be read: how often for each reason, and where first."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] += 1
        self.first.setdefault(reason, where)


def read_rows(file: io.BufferedIOBase, name: str, problems: Problems, has_header: bool = True) -> Iterator[Located]:
    """Yield the rows of one file, each with its place in it.

    Args:
        file: opened for reading; parquet needs it seekable.
        name: its name, which tells the form and the compression.
        problems: receives what could not be read, by reason.
        has_header: whether .csv and .tsv name their columns in the first line; without, columns are "0", "1", ...

    Raises:
        ValueError: the name has none of `SUFFIXES`.
    """
    plain = name.removesuffix(".gz").removesuffix(".zst")
    if not plain.endswith(SUFFIXES):
        raise ValueError(
            f"{name}: cannot tell its form; expected one of {', '.join(SUFFIXES)} (text ones also with .gz or .zst)"
        )
    try:
        stream = _decompressed(file, name)
        if stream.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
            problems.add("git_lfs_pointer", f"{name} (fetch it with `git lfs pull`)")
        elif plain.endswith(".parquet"):
            yield from _parquet(stream, name)
        elif plain.endswith((".csv", ".tsv")):
            yield from _delimited(stream, name, problems, has_header, "\t" if plain.endswith(".tsv") else ",")
        else:
            yield from _json(stream, name, problems)
    except (EOFError, gzip.BadGzipFile, zstandard.ZstdError) as error:
        problems.add("damaged_archive", f"{name}: {error}")
    except pa.ArrowInvalid as error:
        problems.add("damaged_parquet", f"{name}: {error}")


def _decompressed(file: io.BufferedIOBase, name: str) -> io.BufferedReader:
    if name.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), _PEEK_BYTES)
    if name.endswith(".zst"):
        return io.BufferedReader(
            zstandard.ZstdDecompressor().stream_reader(cast(IO[bytes], file), read_across_frames=True), _PEEK_BYTES
        )
    return io.BufferedReader(cast(io.RawIOBase, file), _PEEK_BYTES)


def _parquet(stream: io.BufferedReader, name: str) -> Iterator[Located]:
    batches = pq.ParquetFile(stream).iter_batches(batch_size=256)
    for number, row in enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches), 1):
        yield f"{name}, row {number}", row


def _json(stream: io.BufferedReader, name: str, problems: Problems) -> Iterator[Located]:
    rows = _json_lines(stream, name, problems) if _is_line_by_line(stream) else _json_values(stream, name, problems)
    for where, row in rows:
        if isinstance(row, dict):
            yield where, row
        else:
            problems.add("not_an_object", where)


def _is_line_by_line(stream: io.BufferedReader) -> bool:
    """Return whether a JSON file holds one value per line: the first lines tell, of which one may be broken."""
    head = stream.peek(_PEEK_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
    if head.startswith(b"["):
        return False
    lines = [line for line in head.splitlines(keepends=True)[:20] if line.strip()]
    whole = [line for line in lines if line.endswith(b"\n")]
    return not whole or any(line.lstrip().startswith(b"{") and _parses(line) for line in lines)


def _parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _json_lines(stream: io.BufferedReader, name: str, problems: Problems) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if line.isspace():
            continue
        where = f"{name}:{number}"
        try:
            yield where, orjson.loads(line)
        except orjson.JSONDecodeError:
            # orjson is strict about NaN and lone surrogates; the second is found, and counted, when the row is encoded.
            try:
                yield where, json.loads(line.decode("utf-8"))
            except UnicodeDecodeError:
                problems.add("not_utf8", where)
            except (ValueError, RecursionError):
                problems.add("not_json", where)


def _json_values(stream: io.BufferedReader, name: str, problems: Problems) -> Iterator[tuple[str, Any]]:
    """Yield the elements of a top-level array, or values one after another, reading no more than the next one needs."""
    decoder = json.JSONDecoder()
    text = io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="")
    buffer, position, number, ended = "", 0, 0, False
    while True:
        position = _BETWEEN_VALUES.match(buffer, position).end()  # type: ignore[union-attr]  # matches the empty string
        if position < len(buffer):
            try:
                value, position = decoder.raw_decode(buffer, position)
                number += 1
                yield f"{name}, value {number}", value
                continue
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated string") or error.pos >= len(buffer) - _CUT_MARGIN_CHARS
                if ended or not cut:
                    problems.add("not_json", f"{name}, value {number + 1}: {error.msg}; the rest of the file is unread")
                    return
            except RecursionError:
                problems.add("not_json", f"{name}, value {number + 1}: nested too deep; the rest of the file is unread")
                return
        elif ended:
            return
        # Twice what is held, so that one huge value is parsed a few times and not once per chunk.
        more = text.read(max(_CHUNK_CHARS, len(buffer) - position))
        buffer, position, ended = buffer[position:] + more, 0, not more


def _delimited(
    stream: io.BufferedReader, name: str, problems: Problems, has_header: bool, delimiter: str
) -> Iterator[Located]:
    csv.field_size_limit(1 << 30)
    # A tab-separated file mostly quotes nothing, and then a stray quotation mark must not swallow the lines after it.
    quoted = delimiter == "," or bool(_QUOTED_FIELD.search(stream.peek(_PEEK_BYTES)))
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE)
    header: list[str] | None = None
    while True:
        try:
            fields = next(reader, None)
        except csv.Error:
            problems.add("malformed_csv", f"{name}:{reader.line_num}")
            continue
        if fields is None:
            return
        if not fields:
            continue
        if has_header and header is None:
            header = fields
            continue
        yield f"{name}:{reader.line_num}", dict(zip(header or map(str, range(len(fields))), fields, strict=False))

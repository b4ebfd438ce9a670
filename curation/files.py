"""Files of completions: each yields its lines, whatever its form.

Most are JSON Lines, plain or compressed. JSON arrays and pretty-printed objects (whatever their suffix), Parquet, CSV and TSV are
read as well; there a "line" is one record. Damage costs the records it touches and is counted; it never raises.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from curation.lines import PREVIEW_CHARS, UTF8_BOM, Line, preview, read_line, read_record
from curation.rows import ANSWER_KEYS, PROMPT_KEYS
from datagen import shards

OTHER_SUFFIXES = (".parquet", ".json", ".json.gz", ".json.zst", ".csv", ".tsv")
"""What is read besides shards; `.jsonl` and its compressed forms are shards."""

OWN_FILES = ("run.json", "profile.json", "set.json", "state.json", "dataset_info.json")
"""Cards of ours and of `datasets`, which hold no completions."""

_OWN_PREFIXES = (".", "status")
"""What runs keep for themselves: hidden files, and `status.json` or one `status_...json` a rank."""

_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_PEEK_BYTES = 64 * 1024
_FIELD_BYTES = 64 * 1024 * 1024


def list_files(folder: Path) -> list[Path]:
    """Return the files of `folder` that may hold completions: shards first, then other forms by name.

    Raises:
        ValueError: the folder is missing or holds none.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; `datagen run --manifest ...` makes one")
    others = sorted(
        path
        for path in folder.iterdir()
        if path.name.endswith(OTHER_SUFFIXES) and path.name not in OWN_FILES and not path.name.startswith(_OWN_PREFIXES)
    )
    try:
        return shards.list_shards(folder) + others
    except ValueError:
        if not others:
            raise
        return others


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line of a file, in order."""
    if path.name.endswith(".parquet"):
        yield from _read_parquet(path)
        return
    if path.name.endswith((".csv", ".tsv")):
        yield from _read_table(path)
        return
    try:
        with shards.open_lines(path) as file:
            head = file.read(_PEEK_BYTES)
            if _is_document(head):
                yield from _read_document(head + file.read())
            else:
                yield from _read_line_by_line(head, file)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        yield Line(0, 0, 0, None, reason="damaged_compression", preview=str(error))


def is_seekable(path: Path) -> bool:
    """Whether the lines of a file can be read again by their offset: neither compressed, nor Parquet, nor a document."""
    if not path.name.endswith((".jsonl", ".json")):
        return False
    with path.open("rb") as file:
        return not _is_document(file.read(_PEEK_BYTES))


def _read_line_by_line(head: bytes, file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of what was read of a file already, and of the rest of it."""
    offset = 0
    begun = io.BytesIO(head)
    number = 0
    for raw in begun:
        number += 1
        if not raw.endswith(b"\n"):
            raw += file.readline()
        yield read_line(number, offset, raw)
        offset += len(raw)
    for raw in file:
        number += 1
        yield read_line(number, offset, raw)
        offset += len(raw)


def _is_document(head: bytes) -> bool:
    """Whether a file is JSON over several lines: an array, or an object whose first line is not one by itself."""
    if head.startswith(_UTF16_BOMS):
        return True
    first, _, rest = head.removeprefix(UTF8_BOM).lstrip().partition(b"\n")
    first = first.strip()
    if first.startswith(b"["):
        return True
    return first == b"{" or (first.startswith(b"{") and first.endswith((b",", b"[", b"{", b":")) and bool(rest.strip()))


def _read_document(data: bytes) -> Iterator[Line]:
    """Yield the records of JSON values that span lines; after damage, go on at the next line."""
    text = _decode(data)
    decoder = json.JSONDecoder(strict=False)
    number = position = 0
    while (begin := _skip(text, position)) < len(text):
        opens_records = text[begin] == "[" and text[_skip(text, begin + 1) : _skip(text, begin + 1) + 1] in (
            "{",
            "[",
            '"',
            "]",
        )
        if opens_records or text[begin] == "]":  # elements of an array are read one by one
            position = begin + 1
            continue
        number += 1
        try:
            value, position = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            end = text.find("\n", begin)
            position = len(text) if end < 0 else end + 1
            shown = text[begin : begin + PREVIEW_CHARS]
            yield Line(number, begin, position - begin, None, reason="not_json", preview=shown)
            continue
        yield read_record(number, begin, position - begin, value, text[begin : begin + PREVIEW_CHARS])


def _skip(text: str, position: int) -> int:
    """Return the position of the next character that begins something."""
    while position < len(text) and text[position] in " \t\r\n,\ufeff\x00":
        position += 1
    return position


def _read_parquet(path: Path) -> Iterator[Line]:
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield read_record(number, number - 1, 0, value, "")
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        yield Line(number + 1, number, 0, None, reason="damaged_parquet", preview=preview(str(error).encode()))


def _read_table(path: Path) -> Iterator[Line]:
    """Yield the records of a CSV or TSV file: by its header, or as prompt and completion where it has two columns and none."""
    csv.field_size_limit(_FIELD_BYTES)
    text = _decode(path.read_bytes())
    dialect = "excel-tab" if path.name.endswith(".tsv") else "excel"
    records = csv.reader(io.StringIO(text, newline=""), dialect)
    header: list[str] | None = None
    number = 0
    try:
        for record in records:
            if header is None:
                named = {"messages", "conversations", *PROMPT_KEYS, *ANSWER_KEYS} & set(record)
                header = record if named or len(record) != 2 else ["prompt", "completion"]
                if header is record:
                    continue
            number += 1
            if len(record) != len(header):
                shown = "|".join(record)[:PREVIEW_CHARS]
                yield Line(
                    number, number - 1, 0, None, reason="columns_do_not_match" if record else None, preview=shown
                )
            else:
                yield read_record(number, number - 1, 0, dict(zip(header, record, strict=True)), "")
    except csv.Error as error:
        yield Line(number + 1, number, 0, None, reason="damaged_csv", preview=str(error))


def _decode(data: bytes) -> str:
    if data.startswith(_UTF16_BOMS):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")

"""Rows of evaluation files: JSON, JSON lines, tables and Parquet, plain or compressed.

A file is read as it was downloaded, and what cannot be read is refused with what to do about it: a Git LFS pointer, another encoding, a
table whose header names no question.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import zstandard

from training.prompt_layouts import QUESTION_FIELDS

SUFFIXES = (".jsonl", ".json", ".tsv", ".csv", ".parquet")

LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .jsonl, .json, .tsv, .csv or .parquet file, plain or as .gz or .zst, by field; fields are lower case.

    Raises:
        ValueError: no such file, or it cannot be read; names the line, and says what to do.
    """
    content = _content(path)
    suffix = next((suffix for suffix in reversed(path.suffixes) if suffix not in (".gz", ".zst")), "").lower()
    if content.startswith(LFS_POINTER):
        raise ValueError(
            f"{path} is a Git LFS pointer, not the file; fetch it with `git lfs pull`, or download it again"
        )
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected {', '.join(SUFFIXES)} (also as .gz or .zst), found {suffix or 'no suffix'}")
    if suffix == ".parquet":
        yield from _lower(path, enumerate(_rows_of_parquet(path, content), start=1))
        return
    text = _text(path, content)
    if suffix in (".tsv", ".csv"):
        yield from _rows_of_table(path, text, "\t" if suffix == ".tsv" else ",")
    else:
        yield from _lower(path, _rows_of_json(path, text))


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read prompts from {path}: {error.strerror}") from error
    try:
        if path.suffix == ".gz":
            return gzip.decompress(content)
        if path.suffix == ".zst":
            reader = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content), read_across_frames=True)
            return reader.read()
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"{path} is damaged: {error}; download it again") from error
    return content


def _text(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        guess = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "cp1252"
        found = f"byte 0x{content[error.start]:02x} at {error.start}"
        raise ValueError(
            f"{path} is not UTF-8 ({found}); convert it, e.g. `iconv -f {guess} -t utf-8 {path.name}`, or download it again"
        ) from error


def _lower(path: Path, rows: Iterator[tuple[int, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: expected an object, found {type(row).__name__}")
        yield {str(name).lower(): value for name, value in row.items()}


def _rows_of_parquet(path: Path, content: bytes) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(io.BytesIO(content)) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no Parquet file, or damaged: {str(error).splitlines()[0]}") from error


def _rows_of_json(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """Rows of one list, of one object over several lines (a row, or an object that holds the list), or one a line."""
    whole = _whole(text)
    if isinstance(whole, dict) and not any(name.lower() in QUESTION_FIELDS for name in whole):
        lists = [value for value in whole.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
        whole = lists[0] if len(lists) == 1 else whole
    if whole is not None:
        yield from enumerate(whole, start=1) if isinstance(whole, list) else [(1, whole)]
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise ValueError(f"{path}, line {number}: not JSON ({error})") from error


def _whole(text: str) -> Any:
    """Return the value of a text that is one JSON list or object, None where it is not."""
    lines = text.strip().split("\n", 1)
    if lines[0].startswith("{") and lines[0].rstrip().endswith("}") and len(lines) > 1:
        return None  # JSON lines, which would be read twice
    try:
        return orjson.loads(text) if lines[0].startswith(("[", "{")) else None
    except orjson.JSONDecodeError:
        return None


def _rows_of_table(path: Path, text: str, delimiter: str) -> Iterator[dict[str, Any]]:
    """A table whose first line names a question field, or one of questions and numbers without a header, as MGSM is."""
    lines = io.StringIO(text, newline="")
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if delimiter == "\t" else csv.reader(lines)
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from error
    header = [name.strip().lower() for name in rows[0]] if rows else []
    if any(name in QUESTION_FIELDS for name in header):
        yield from (dict(zip(header, row, strict=False)) for row in rows[1:])
    elif all(len(row) == 2 and _is_number(row[1]) for row in rows):
        yield from ({"question": row[0]} for row in rows)
    else:
        raise ValueError(
            f"{path}: its header names nothing that is asked (found {', '.join(header[:8])}); expected one of "
            f"{', '.join(QUESTION_FIELDS)}, or two columns without a header, a question and a number"
        )


def _is_number(text: str) -> bool:
    return text.strip().replace(",", "").lstrip("-").replace(".", "", 1).isdigit()

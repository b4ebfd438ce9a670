"""The tolerant reader: whatever a shard holds, each of its lines becomes a JSON object or a counted reason.

orjson parses first, because it is fast and strict. What it refuses is tried again with the standard library, which
accepts raw control characters, NaN and lone surrogates; lone surrogates become U+FFFD, and bytes that are not UTF-8 are
read as Windows-1252. A line that was read that way is `repaired`; one that was not is `rejected` with a reason. Nothing
in a file raises.

Files that are not line by line are read as well: JSON arrays and pretty-printed objects (whatever their suffix), and
Parquet. There a "line" is one record.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from datagen import shards

UTF8_BOM = b"\xef\xbb\xbf"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_PEEK_BYTES = 64 * 1024
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(slots=True)
class Line:
    """One line of a shard, or one record of a file that is not line by line."""

    number: int
    """1-based."""
    offset: int
    """Byte offset in the (decompressed) file; of a Parquet row, its index."""
    num_bytes: int
    """Length without the line's end."""
    value: dict[str, Any] | None
    """The object, or None where the line is blank or rejected."""
    repaired: bool = False
    reason: str | None = None
    """Why it is rejected; None where it is not."""
    preview: str = ""
    """The beginning of a rejected line, for a person."""

    @property
    def blank(self) -> bool:
        """Whether there is nothing on the line."""
        return self.value is None and self.reason is None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield every line of a shard, in order."""
    if path.name.endswith(".parquet"):
        yield from _read_parquet(path)
        return
    try:
        with shards.open_lines(path) as file:
            head = file.peek(_PEEK_BYTES) if hasattr(file, "peek") else b""
            if _is_document(head):
                yield from _read_document(file.read())
            else:
                yield from _read_line_by_line(file)
    except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
        yield Line(0, 0, 0, None, reason="damaged_compression", preview=str(error))


def is_seekable(path: Path) -> bool:
    """Whether the lines of a shard can be read again by their offset: neither compressed, nor Parquet, nor a document."""
    if not path.name.endswith((".jsonl", ".json")):
        return False
    with path.open("rb") as file:
        return not _is_document(file.read(_PEEK_BYTES))


def parse_line(raw: bytes) -> tuple[dict[str, Any] | None, bool, str | None]:
    """Parse one line: (object, whether it was repaired, None), or (None, False, reason)."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value, reason = _repair(raw)
        if reason is not None:
            return None, False, reason
        if isinstance(value, dict):
            return value, True, None
    if isinstance(value, dict):
        return value, False, None
    return None, False, "not_an_object"


def _read_line_by_line(file: BinaryIO) -> Iterator[Line]:
    offset = 0
    for number, raw in enumerate(file, start=1):
        yield raw_line(number, offset, raw)
        offset += len(raw)


def raw_line(number: int, offset: int, raw: bytes) -> Line:
    """Read one raw line, with or without its end."""
    text = raw.strip(b" \t\r\n\x00")
    if number == 1 and text.startswith(UTF8_BOM):
        text = text[len(UTF8_BOM) :]
    size = len(raw.rstrip(b"\r\n"))
    if not text:
        return Line(number, offset, size, None)
    value, repaired, reason = parse_line(text)
    if reason == "not_json":
        if number == 1 and text.startswith(_LFS_POINTER):
            reason = "git_lfs_pointer"
        elif not raw.endswith(b"\n"):
            reason = "unfinished_last_line"
    return Line(number, offset, size, value, repaired, reason, _preview(text) if reason else "")


def _repair(raw: bytes) -> tuple[Any, str | None]:
    """Parse what orjson refuses: (value, None), or (None, reason)."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("cp1252", errors="replace")
    try:
        value = json.loads(text, strict=False)
    except RecursionError:
        return None, "nested_too_deep"
    except ValueError:  # JSONDecodeError, or an integer of more digits than Python converts
        return None, "not_json"
    return _mend_surrogates(value), None


def _mend_surrogates(value: Any) -> Any:
    """Join surrogate pairs and replace lone ones, in every string of a JSON value.

    Recursion is as deep as the value, which `json.loads` has just managed at the same cost per level.
    """
    if isinstance(value, str):
        if not _LONE_SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_mend_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_mend_surrogates(key): _mend_surrogates(item) for key, item in value.items()}
    return value


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
    text = _decode_document(data)
    decoder = json.JSONDecoder(strict=False)
    number = position = 0
    while (begin := _skip(text, position)) < len(text):
        number += 1
        if text[begin] == "]":  # the end of an array whose elements were read one by one
            position, number = begin + 1, number - 1
            continue
        if text[begin] == "[" and _skip(text, begin + 1) < len(text) and text[_skip(text, begin + 1)] in '{"[]':
            position, number = begin + 1, number - 1
            continue
        try:
            value, position = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            end = text.find("\n", begin)
            position = len(text) if end < 0 else end + 1
            yield Line(number, begin, position - begin, None, reason="not_json", preview=text[begin : begin + 200])
            continue
        yield _record(number, begin, position - begin, value, text[begin : begin + 200])


def _decode_document(data: bytes) -> str:
    if data.startswith(_UTF16_BOMS):
        return data.decode("utf-16", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _skip(text: str, position: int) -> int:
    """Return the position of the next character that begins something."""
    while position < len(text) and text[position] in " \t\r\n,\ufeff\x00":
        position += 1
    return position


def _read_parquet(path: Path) -> Iterator[Line]:
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=256):
                for value in batch.to_pylist():
                    number += 1
                    yield _record(number, number - 1, 0, value, "")
    except (pa.ArrowException, UnicodeDecodeError) as error:
        yield Line(0, 0, 0, None, reason="damaged_parquet", preview=_preview(str(error).encode()))


def _record(number: int, offset: int, size: int, value: Any, preview: str) -> Line:
    if not isinstance(value, dict):
        return Line(number, offset, size, None, reason="not_an_object", preview=preview)
    mended = _mend_surrogates(value)
    return Line(number, offset, size, mended, repaired=mended != value)


def _preview(raw: bytes, most: int = 200) -> str:
    return raw[:most].decode("utf-8", "replace")

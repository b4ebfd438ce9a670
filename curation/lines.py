"""The tolerant parser: whatever a line holds, it becomes a JSON object or a counted reason.

orjson parses first, because it is fast and strict. What it refuses is tried again with the standard library, which
accepts raw control characters, NaN and lone surrogates; lone surrogates become U+FFFD, and bytes that are not UTF-8 are
read as Windows-1252. A line that was read that way is `repaired`; one that was not is `rejected` with a reason. Nothing
that a line can hold raises.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import orjson

UTF8_BOM = b"\xef\xbb\xbf"
PREVIEW_CHARS = 200

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class Line:
    """One line of a shard, or one record of a file that is not line by line."""

    number: int
    """1-based."""
    offset: int
    """Byte offset in the (decompressed) file; in files that are not line by line, the place of the record."""
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


def read_line(number: int, offset: int, raw: bytes) -> Line:
    """Read one raw line, with or without its end."""
    text = raw.strip(b" \t\r\n\x00")
    if number == 1 and text.startswith(UTF8_BOM):
        text = text[len(UTF8_BOM) :]
    size = len(raw.rstrip(b"\r\n"))
    if not text:
        return Line(number, offset, size, None)
    value, repaired, reason = parse(text)
    if reason == "not_json":
        if number == 1 and text.startswith(_LFS_POINTER):
            reason = "git_lfs_pointer"
        elif not raw.endswith(b"\n"):
            reason = "unfinished_last_line"
    return Line(number, offset, size, value, repaired, reason, preview(text) if reason else "")


def read_record(number: int, offset: int, size: int, value: Any, shown: str) -> Line:
    """Read one value that another reader has parsed."""
    if not isinstance(value, dict):
        return Line(number, offset, size, None, reason="not_an_object", preview=shown[:PREVIEW_CHARS])
    mended = mend_surrogates(value)
    return Line(number, offset, size, mended, repaired=mended != value)


def parse(raw: bytes) -> tuple[dict[str, Any] | None, bool, str | None]:
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


def mend_surrogates(value: Any) -> Any:
    """Join surrogate pairs and replace lone ones, in every string of a JSON value.

    Recursion is as deep as the value, which its parser has just managed at the same cost per level.
    """
    if isinstance(value, str):
        if not _SURROGATE.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [mend_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {mend_surrogates(key): mend_surrogates(item) for key, item in value.items()}
    return value


def preview(raw: bytes) -> str:
    """Return the beginning of a line as text."""
    return raw[:PREVIEW_CHARS].decode("utf-8", "replace")


def _repair(raw: bytes) -> tuple[Any, str | None]:
    """Parse what orjson refuses: (value, None), or (None, reason)."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("cp1252", errors="replace")
    try:
        return mend_surrogates(json.loads(text, strict=False)), None
    except RecursionError:
        return None, "nested_too_deep"
    except ValueError:  # JSONDecodeError, or an integer of more digits than Python converts
        return None, "not_json"

"""The journal of one open shard: every answer is durable here before the shard exists.

One file per open shard, so publishing a shard and forgetting its journal is one `unlink`: nothing is compacted, disk and
memory are bounded by the open shards, and whoever resumes the folder needs no other index. A record is one line,

    crc32 of the rest (8 hex digits) | kind | plan id | payload

so a torn tail (the process or the machine died while writing) is recognised and cut, and a record damaged in the middle
is skipped and its row asked again. Records are written at once, and so survive the death of the process; `sync` makes a
group of them survive the death of the machine.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zlib import crc32

Kind = Literal["done", "failed"]
"""`done` holds the row's line; `failed` says why there is none."""

_CODES: dict[Kind, bytes] = {"done": b"d", "failed": b"f"}
_KINDS: dict[bytes, Kind] = {code: kind for kind, code in _CODES.items()}
_CRC_BYTES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """Where a payload lies in its journal."""

    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record as replayed."""

    kind: Kind
    id: str
    """Plan id of the row."""
    payload: bytes
    place: Place


@dataclass(frozen=True, slots=True)
class Replay:
    """What a journal holds: the records that are whole, in order, and what was lost."""

    records: list[Record]
    end: int
    """Offset behind the last whole line; what follows is a torn tail."""
    num_damaged: int
    """Whole lines whose checksum does not match."""


def encode(kind: Kind, row_id: str, payload: bytes) -> bytes:
    """Return a record as one line. `payload` has no newline in it (JSON has none)."""
    body = b" %b %b %b" % (_CODES[kind], row_id.encode(), payload)
    return b"%08x%b\n" % (crc32(body), body)


def replay(path: Path) -> Replay:
    """Read a journal from the start. Nothing is changed on disk."""
    records: list[Record] = []
    end = num_damaged = 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            record = _decode(line, end)
            if record is None:
                num_damaged += 1
            else:
                records.append(record)
            end += len(line)
    return Replay(records, end, num_damaged)


class Journal:
    """An open journal: appends records, reads payloads back.

    Raises:
        OSError: from any method, as the disk says it (full, read-only). After a failed append the file ends behind the
            last whole record.
    """

    def __init__(self, path: Path, end: int) -> None:
        """Open `path` for appending at `end`, cutting what follows; creates it where it is missing."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._end = end
        os.ftruncate(self._descriptor, end)
        self._synced = end

    @property
    def num_bytes(self) -> int:
        """Length of the journal."""
        return self._end

    def append(self, kind: Kind, row_id: str, payload: bytes) -> Place:
        """Write one record and return where its payload lies."""
        line = encode(kind, row_id, payload)
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._descriptor, line[written:], self._end + written)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)
        return Place(self._end - 1 - len(payload), len(payload))

    def sync(self) -> None:
        """Make everything appended so far survive a power cut. Safe to call from another thread."""
        end = self._end
        if end > self._synced:
            os.fdatasync(self._descriptor)
            self._synced = end

    def read(self, place: Place) -> bytes:
        """Return a payload."""
        return os.pread(self._descriptor, place.num_bytes, place.offset)

    def close(self) -> None:
        """Close the file; it stays."""
        os.close(self._descriptor)


def _decode(line: bytes, start: int) -> Record | None:
    body = line[_CRC_BYTES:-1]
    if line[:_CRC_BYTES] != b"%08x" % crc32(body):
        return None
    _, code, row_id, payload = body.split(b" ", 3)
    return Record(_KINDS[code], row_id.decode(), payload, Place(start + len(line) - 1 - len(payload), len(payload)))

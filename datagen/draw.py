"""The draw: of a stream of rows of any length, the ones with the lowest hash rank, in memory bounded by how many are drawn.

A row's rank is a keyed hash of its content, so the draw does not depend on the order of rows or files, is the same on every
machine, and is nested: a larger draw holds every smaller one. Payloads go to a spool file as they qualify; what memory holds
per candidate is a rank, an offset and a length.
"""

from __future__ import annotations

import tempfile
from hashlib import blake2b
from pathlib import Path

import numpy as np

_SLACK = 4096
"""Candidates beyond the draw (and a quarter of it) before those that no longer qualify are forgotten."""

_LENGTH_BYTES = 8


def rank(payload: bytes, seed: int) -> int:
    """Return the 64-bit rank of a row: uniform, the same wherever the same content stands."""
    return int.from_bytes(blake2b(payload, digest_size=8, key=_key(seed, b"rank")).digest(), "little")


def place(row_rank: int, source: str, seed: int) -> int:
    """Return the 64-bit key that orders a plan: independent of the rank, so that every stretch of it has the mix of the whole."""
    content = row_rank.to_bytes(8, "little") + source.encode()
    return int.from_bytes(blake2b(content, digest_size=8, key=_key(seed, b"place")).digest(), "little")


def fraction(row_rank: int, purpose: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on the row, the purpose and the seed alone."""
    content = row_rank.to_bytes(8, "little") + purpose.encode()
    return int.from_bytes(blake2b(content, digest_size=8, key=_key(seed, b"fraction")).digest(), "little") / 2**64


class Draw:
    """The `size` rows of lowest rank among those offered; equal ranks are one row."""

    def __init__(self, size: int, spool_folder: Path | None = None) -> None:
        """Open a spool file, unnamed and gone with this object.

        Args:
            size: rows to draw.
            spool_folder: where the spool is; None takes the system's temporary folder.
        """
        self.size = size
        self._spool = tempfile.TemporaryFile(dir=spool_folder)
        self._end = 0
        self._offsets: dict[int, int] = {}
        self._bar = 2**64

    def offer(self, row_rank: int, payload: bytes) -> None:
        """Take the row in if its rank is among the lowest so far."""
        if row_rank >= self._bar or row_rank in self._offsets or self.size == 0:
            return
        self._spool.write(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
        self._offsets[row_rank] = self._end
        self._end += _LENGTH_BYTES + len(payload)
        if len(self._offsets) > self.size + self.size // 4 + _SLACK:
            self._forget()

    def ranks(self) -> np.ndarray:
        """Return the ranks drawn, ascending, as uint64."""
        self._forget()
        return np.sort(np.fromiter(self._offsets, dtype=np.uint64, count=len(self._offsets)))

    def payload(self, row_rank: int) -> bytes:
        """Return a drawn row."""
        self._spool.seek(self._offsets[row_rank])
        return self._spool.read(int.from_bytes(self._spool.read(_LENGTH_BYTES), "little"))

    def _forget(self) -> None:
        if len(self._offsets) <= self.size:
            return
        ranks = np.fromiter(self._offsets, dtype=np.uint64, count=len(self._offsets))
        self._bar = int(np.partition(ranks, self.size)[self.size])
        self._offsets = {row_rank: offset for row_rank, offset in self._offsets.items() if row_rank < self._bar}


def _key(seed: int, purpose: bytes) -> bytes:
    return b"%s %d" % (purpose, seed)

"""Batches: rows of a set packed into micro-batches, built ahead of the step that needs them.

`RowStore` maps the Arrow files into memory and copies only what a micro-batch needs; `prefetch` builds micro-batches in a
thread and counts the seconds that the training loop waited for it. Which rows make which micro-batch is `order.py`'s.

Shape letters: T tokens of one packed micro-batch, padding included.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from curation.arrow_sets import open_table

PAD_TO_TOKENS = 128
"""Micro-batches are padded to a multiple of this many tokens, so that compiled kernels see few shapes."""


@dataclass(frozen=True)
class Batch:
    """Packed documents of one micro-batch on one rank."""

    input_ids_T: torch.Tensor
    """int64 [T]: the documents one after another, then padding (id 0)."""
    document_T: torch.Tensor
    """int64 [T]: 0-based document number, -1 on the padding at the end."""
    position_T: torch.Tensor
    """int64 [T]: position within the document, from 0."""
    loss_mask_T: torch.Tensor
    """bool [T]: True on what the target generated."""
    row_ids: list[str]
    """Ids of the rows, by document number."""
    domains: list[str]
    """Domains of the rows, by document number."""
    bucket: int
    """Length bucket that the documents come from, 0 holds the shortest."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on `device`; the copy overlaps with computation where memory is pinned."""
        if device.type == "cpu":
            return self
        moved = {
            name: getattr(self, name).pin_memory().to(device, non_blocking=True)
            for name in ("input_ids_T", "document_T", "position_T", "loss_mask_T")
        }
        return replace(self, **moved)


class RowStore:
    """The rows of a set (or of its held-out part) that can be learnt from, in memory-mapped files."""

    def __init__(self, folder: Path, max_length: int):
        """Open `folder` and index its rows.

        Rows are cut to `max_length` tokens. A row without two supervised tokens in a row (after the cut) holds no anchor and is
        left out. Both are counted in `counts`: rows, truncated, no_anchor.

        Raises:
            ValueError: there is no Arrow file, a row's mask does not fit its tokens, or no row can be learnt from.
        """
        table = open_table(folder)
        self.max_length = max_length
        self._ids, self._masks = _Lists(table["input_ids"]), _Lists(table["loss_mask"])
        if not np.array_equal(self._ids.lengths, self._masks.lengths):
            row = int(np.flatnonzero(self._ids.lengths != self._masks.lengths)[0])
            raise ValueError(
                f"{folder}: row {row} has {self._ids.lengths[row]} tokens and a loss_mask of {self._masks.lengths[row]}; "
                "build the set again with `curate build`"
            )
        lengths = np.minimum(self._ids.lengths, max_length)
        usable = self._masks.adjacent_ones(max_length) > 0
        self.rows = np.flatnonzero(usable)
        """Positions in the set of the rows that can be learnt from; everything else here counts within these."""
        if not len(self.rows):
            raise ValueError(
                f"{folder}: none of its {len(usable)} rows has two supervised tokens in its first {max_length}"
            )
        self.lengths = lengths[self.rows]
        """int64: tokens of each usable row, after the cut."""
        self.counts = Counter(
            rows=len(usable),
            truncated=int((self._ids.lengths > max_length)[self.rows].sum()),
            no_anchor=int((~usable).sum()),
        )
        self._row_ids, self._domains = table["id"], table["domain"]
        self.domains = sorted(set(self._domains.unique().to_pylist()))
        """Names of the domains that occur in the set."""

    def __len__(self) -> int:
        return len(self.rows)

    def row_ids(self, rows: np.ndarray) -> list[str]:
        """Return the ids of usable rows."""
        return [self._row_ids[int(row)].as_py() for row in self.rows[rows]]

    def row_domains(self, rows: np.ndarray) -> list[str]:
        """Return the domains of usable rows."""
        return [self._domains[int(row)].as_py() for row in self.rows[rows]]

    def pack(self, rows: np.ndarray, bucket: int) -> Batch:
        """Return usable rows `rows` as one packed micro-batch."""
        ids = [self._ids.row(int(row))[: self.max_length] for row in self.rows[rows]]
        masks = [self._masks.row(int(row))[: self.max_length] for row in self.rows[rows]]
        lengths = np.array([len(row) for row in ids])
        padding = -int(lengths.sum()) % PAD_TO_TOKENS
        number = np.repeat(np.arange(len(ids)), lengths)
        position = np.arange(len(number)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return Batch(
            input_ids_T=_padded(np.concatenate(ids).astype(np.int64), padding, 0),
            document_T=_padded(number, padding, -1),
            position_T=_padded(position, padding, 0),
            loss_mask_T=_padded(np.concatenate(masks).astype(bool), padding, False),
            row_ids=self.row_ids(rows),
            domains=self.row_domains(rows),
            bucket=bucket,
        )

    def largest_token_id(self) -> int:
        """Return the largest token id in the set: what a target's vocabulary must exceed."""
        return self._ids.largest()


class Prefetched:
    """Micro-batches built in a thread, at most `depth` ahead; iterate once.

    What the thread raises is raised in the loop. `wait_s` is the time that the loop has waited so far.
    """

    def __init__(self, build: Callable[[int], Batch], indices: Iterable[int], depth: int):
        self.wait_s = 0.0
        self._queue: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=depth)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(build, iter(indices)), name="batches", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        while True:
            started = time.perf_counter()
            item = self._queue.get()
            self.wait_s += time.perf_counter() - started
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    @property
    def depth(self) -> int:
        """Micro-batches that are ready now."""
        return self._queue.qsize()

    def close(self) -> None:
        """Stop the thread and wait for it."""
        self._stopping.set()
        while self._thread.is_alive():
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue

    def _work(self, build: Callable[[int], Batch], indices: Iterator[int]) -> None:
        try:
            for index in indices:
                if self._stopping.is_set():
                    return
                self._queue.put(build(index))
            self._queue.put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the loop, which raises it
            self._queue.put(error)


class _Lists:
    """A chunked list column as flat numpy views: no Python object per value."""

    def __init__(self, column: object):
        chunks = column.chunks  # type: ignore[attr-defined]  # a pyarrow.ChunkedArray; pyarrow ships no types
        self._values = [chunk.values.to_numpy(zero_copy_only=True) for chunk in chunks]
        self._offsets = [chunk.offsets.to_numpy(zero_copy_only=True).astype(np.int64) for chunk in chunks]
        rows = [len(offsets) - 1 for offsets in self._offsets]
        self._first_row = np.concatenate([[0], np.cumsum(rows)])
        self.lengths = np.concatenate([np.diff(offsets) for offsets in self._offsets])

    def row(self, row: int) -> np.ndarray:
        """Return the values of a row, a view."""
        chunk = int(np.searchsorted(self._first_row, row, side="right")) - 1
        start, end = self._offsets[chunk][row - self._first_row[chunk] :][:2]
        return self._values[chunk][start:end]

    def adjacent_ones(self, max_length: int) -> np.ndarray:
        """Return int64 [rows]: places in the first `max_length` values where a one is followed by a one."""
        counts = []
        for values, offsets in zip(self._values, self._offsets, strict=True):
            pairs = (values[:-1] == 1) & (values[1:] == 1)
            running = np.concatenate([[0], np.cumsum(pairs)])
            starts = offsets[:-1]
            lasts = np.maximum(np.minimum(offsets[1:], starts + max_length) - 1, starts)
            within = np.minimum(lasts, len(running) - 1)
            counts.append(running[within] - running[np.minimum(starts, len(running) - 1)])
        return np.concatenate(counts)

    def largest(self) -> int:
        """Return the largest value."""
        return max((int(values.max()) for values in self._values if len(values)), default=0)


def _padded(values: np.ndarray, padding: int, fill: int | bool) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([values, np.full(padding, fill, dtype=values.dtype)]))

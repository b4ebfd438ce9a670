"""The workspace: a hidden folder beside the set to be, where a build keeps what it has finished.

It is named after the set (`.tokenized_v2.building`), so that a build that was killed, or refused because its shares cannot
be met, finds it again. What a step left is named with a key: a digest of the shards, of the step's settings, and of
all steps before it. So the next build redoes what something has changed for, and nothing else. The set grows inside the
workspace and becomes visible by one rename; then the rest goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from curation.funnel import Drop, Outcome
from datagen import shards

_KEY_DIGITS = 12


class Workspace:
    """An open workspace; its lock is held by the caller of `open_workspace`."""

    def __init__(self, folder: Path, out: Path) -> None:
        self.folder, self.out = folder, out
        self.resumed: list[str] = []
        """Steps whose result was there already."""
        self._key = ""

    def outcome(self, name: str, goes_in: Any, compute: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a step: as an earlier build left it, or computed and kept now.

        Args:
            goes_in: JSON of what the step depends on besides the steps before it.
        """
        path = self._place(name, goes_in, ".arrow")
        if path.is_file():
            self.resumed.append(name)
            return _load_outcome(path)
        outcome = compute()
        shards.publish(path, [_encode_outcome(outcome)])
        return outcome

    def subfolder(self, name: str, goes_in: Any) -> Path:
        """Return the folder of a step that leaves many files, as far as an earlier build filled it."""
        path = self._place(name, goes_in, "")
        if path.is_dir():
            self.resumed.append(name)
        path.mkdir(exist_ok=True)
        return path

    def publish(self, written: Path) -> None:
        """Make the folder `written` visible as the set, and remove the rest."""
        os.rename(written, self.out)
        shards.fsync_folder(self.out.parent)
        shutil.rmtree(self.folder)

    def _place(self, name: str, goes_in: Any, suffix: str) -> Path:
        """Return where the result of a step is or will be; results of the same step under other keys make room."""
        basis = [self._key, name, goes_in]
        self._key = hashlib.sha256(orjson.dumps(basis, option=orjson.OPT_SORT_KEYS)).hexdigest()[:_KEY_DIGITS]
        path = self.folder / f"{name}.{self._key}{suffix}"
        for stale in self.folder.glob(f"{name}.*"):
            if stale != path:
                shutil.rmtree(stale) if stale.is_dir() else stale.unlink()
        return path


@contextlib.contextmanager
def open_workspace(out: Path) -> Iterator[Workspace]:
    """Open the workspace of the set `out` and hold its lock.

    Raises:
        ValueError: `out` exists, another build is writing it, or its folder cannot be written.
    """
    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or remove it first")
    folder = out.parent / f".{out.name}.building"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise ValueError(f"cannot write in {out.parent}: {error.strerror}; choose another --out") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another build is writing {out}; wait for it, or choose another --out") from error
        yield Workspace(folder, out)


def _encode_outcome(outcome: Outcome) -> bytes:
    drops = pa.Table.from_pylist(
        [
            {"row": d.row, "reason": d.reason, "collided_with": d.collided_with, "score": d.score, "detail": d.detail}
            for d in outcome.dropped
        ],
        schema=pa.schema(
            [
                ("row", pa.int64()),
                ("reason", pa.string()),
                ("collided_with", pa.string()),
                ("score", pa.float64()),
                ("detail", pa.string()),
            ]
        ),
    )
    kept = pa.table({"kept": pa.array(outcome.kept.astype(np.int64))}, metadata={"notes": orjson.dumps(outcome.notes)})
    sink = pa.BufferOutputStream()
    for table in (kept, drops):
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


def _load_outcome(path: Path) -> Outcome:
    with pa.memory_map(str(path)) as source:
        kept = pa.ipc.open_stream(source).read_all()
        drops = pa.ipc.open_stream(source).read_all()
        notes = orjson.loads(kept.schema.metadata[b"notes"])
        return Outcome(kept["kept"].to_numpy().copy(), [Drop(**drop) for drop in drops.to_pylist()], notes)

"""The workspace: a hidden folder beside the set to be, where a build keeps what it has finished.

It is named after the set (`.tokenized_v2.building`), so that a build that was killed finds it again and goes on where it
stopped. A fingerprint of all that went in guards it: a workspace of other settings or other shards is thrown away. The set grows inside
it and becomes visible by one rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from curation.funnel import Drop, Outcome
from datagen import shards

_FINGERPRINT = "fingerprint.json"


@dataclass(frozen=True, slots=True)
class Workspace:
    """An open workspace; its lock is held by the caller of `open_workspace`."""

    folder: Path
    out: Path

    @property
    def tokens(self) -> Path:
        """Folder of tokenised chunks."""
        return self.folder / "tokens"

    @property
    def set(self) -> Path:
        """The set as far as it is written."""
        return self.folder / "set"

    def outcome(self, name: str, compute: Callable[[], Outcome]) -> Outcome:
        """Return the outcome of a step: as an earlier run of this build left it, or computed and kept now."""
        path = self.folder / f"{name}.arrow"
        if path.is_file():
            return _load_outcome(path)
        outcome = compute()
        shards.publish(path, [_encode_outcome(outcome)])
        return outcome

    def begin(self, fingerprint: str) -> bool:
        """Bind the workspace to what goes in. Returns whether an unfinished build of the same is being resumed."""
        path = self.folder / _FINGERPRINT
        resumed = path.is_file() and orjson.loads(path.read_bytes()) == fingerprint
        if not resumed:
            for entry in self.folder.iterdir():
                if entry.name != "lock":
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            shards.publish(path, [orjson.dumps(fingerprint)])
        self.tokens.mkdir(exist_ok=True)
        self.set.mkdir(exist_ok=True)
        return resumed

    def publish(self) -> None:
        """Make the set visible under its name and remove the rest."""
        os.rename(self.set, self.out)
        shards.fsync_folder(self.out.parent)
        shutil.rmtree(self.folder)


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

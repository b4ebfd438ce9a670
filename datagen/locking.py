"""Who works on a folder. Locks are POSIX record locks, so they vanish with their process and hold across hosts on NFS.

A run of `--world W` is W processes on one folder, each with its own lock; shard i belongs to rank i mod W. Two runs of
the same rank, or runs that divide the folder differently, would answer the same rows twice: the second one is refused.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import orjson

_RANK_LOCK = re.compile(r"^rank_(\d+)_of_(\d+)\.lock$")

_TRIES = 5
_PAUSE_S = 0.05
"""A lock is tried a few times: `datagen status` may be looking at it for a moment."""

_threads = threading.Lock()


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock file `path` for a short critical section, waiting for whoever has it."""
    # Record locks belong to the process: between its own threads they exclude nothing.
    with _threads, path.open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


@contextmanager
def rank_lock(folder: Path, rank: int, world: int) -> Iterator[None]:
    """Hold `folder` (the hidden folder of a run) for one rank, for as long as the process lives.

    Raises:
        ValueError: another process works as this rank, or the folder is being worked on by a different number of ranks.
    """
    with exclusive(folder / "start.lock"):
        for name, holder in _holders(folder, besides=_lock_name(rank, world)):
            if int(name.group(2)) != world:
                raise ValueError(
                    f"{folder.parent} is being worked on by {holder} as one of {name.group(2)} ranks; "
                    f"wait for it, or start this one with --world {name.group(2)}"
                )
        file = _lock_or_none(folder / _lock_name(rank, world))
        if file is None:
            raise ValueError(
                f"{folder.parent} is being worked on by {identity(folder / _lock_name(rank, world))}; "
                "wait for it or stop it, then run the same command again"
            )
        file.truncate(0)
        file.write(orjson.dumps({"host": socket.gethostname(), "pid": os.getpid(), "rank": rank, "world": world}))
        file.flush()
    with file:
        yield


def workers(folder: Path) -> list[str]:
    """Return who works on a run's hidden folder right now, for people."""
    return [holder for _, holder in _holders(folder, besides="")] if folder.is_dir() else []


def identity(path: Path) -> str:
    """Return who wrote a lock file: `host h, process p (rank r of w)`."""
    try:
        who = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        return "another process"
    return f"host {who['host']}, process {who['pid']} (rank {who['rank']} of {who['world']})"


def _holders(folder: Path, besides: str) -> Iterator[tuple[re.Match[str], str]]:
    for path in sorted(folder.iterdir()):
        name = _RANK_LOCK.match(path.name)
        # The lock of this very process is never opened twice: closing the second handle would release it.
        if name and path.name != besides and _is_held(path):
            yield name, identity(path)


def _is_held(path: Path) -> bool:
    """Test with a shared lock, so that two who only look never mistake each other for a worker."""
    with path.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock_or_none(path: Path) -> IO[bytes] | None:
    file = path.open("ab")
    for _ in range(_TRIES):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PAUSE_S)
        else:
            return file
    file.close()
    return None


def _lock_name(rank: int, world: int) -> str:
    return f"rank_{rank:03d}_of_{world:03d}.lock"

"""The format of `completions_raw/`: what the target answered, one generation per JSONL line.

Shards are `completions_000000.jsonl`, `completions_000001.jsonl`, ... in plan order. A shard appears under its name
only when it is complete (unique temporary name, fsync, rename, fsync of the folder), so its presence means it is whole.
`run.json` beside them says what made them. This module is light: the next stage imports it and nothing else of datagen.

The fields of a row are listed in ARCHITECTURE.md; `REQUIRED` are the only ones that shards from elsewhere must have.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

REQUIRED = ("messages", "completion")
"""Fields without which a row is not a completion."""

RUN_CARD = "run.json"
"""Resolved manifest, plan digest, target revision, tokenizer and chat-template digests, engine versions."""

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""What counts as a shard of other people's making."""

_SHARD = re.compile(r"^completions_(\d{6})\.jsonl(?:\.gz|\.zst)?$")


def shard_name(index: int) -> str:
    """Return the file name of shard `index` (0-based)."""
    return f"completions_{index:06d}.jsonl"


def shard_index(path: Path) -> int | None:
    """Return the number in a shard's name, or None for a file that is not named as one of ours."""
    match = _SHARD.match(path.name)
    return int(match.group(1)) if match else None


def list_shards(folder: Path) -> list[Path]:
    """Return the shard files of `folder` in order: ours by number, then foreign JSONL files by name.

    Files that a run keeps for itself (journal, failures, rejects: any name that starts with `failed`, `rejected`,
    `journal` or a dot) are not shards.

    Raises:
        ValueError: the folder is missing or holds no shard.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; `datagen run --manifest ...` makes one")
    found = [
        path
        for path in folder.iterdir()
        if path.name.endswith(SUFFIXES) and not path.name.startswith((".", "failed", "rejected", "journal", "plan"))
    ]
    if not found:
        raise ValueError(f"{folder} holds no completions (*.jsonl, *.jsonl.gz, *.jsonl.zst)")
    ours = sorted(path for path in found if shard_index(path) is not None)
    return ours + sorted(path for path in found if shard_index(path) is None)


def open_lines(path: Path) -> BinaryIO:
    """Open a shard for reading bytes, decompressing `.gz` and `.zst`."""
    if path.name.endswith(".gz"):
        return io.BufferedReader(gzip.open(path, "rb"))
    if path.name.endswith(".zst"):
        import zstandard  # here: most folders hold no compressed shard

        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(path.open("rb"), closefd=True))
    return path.open("rb")


def encode_row(row: dict[str, Any]) -> bytes:
    """Return a row as one line of JSON, newline included. Equal rows give equal bytes: keys keep the order of `row`."""
    return orjson.dumps(row) + b"\n"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a shard of our own making. Foreign shards go through curation's tolerant reader."""
    with open_lines(path) as lines:
        for line in lines:
            yield orjson.loads(line)


def publish(path: Path, lines: Iterable[bytes]) -> None:
    """Write `lines` to `path` so that the file is either absent or whole, whatever happens on the way."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(path.parent)


def write_card(path: Path, card: dict[str, Any]) -> None:
    """Publish a JSON card (`run.json`, `set.json`): sorted keys, two spaces, so that it diffs well."""
    publish(path, [orjson.dumps(card, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"])


def read_card(folder: Path) -> dict[str, Any] | None:
    """Return `run.json` of a folder, or None where shards came from elsewhere."""
    path = folder / RUN_CARD
    return orjson.loads(path.read_bytes()) if path.is_file() else None


def fsync_folder(folder: Path) -> None:
    """Make a rename in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The format of `tokenized_vN/`: what to learn from, as a Hugging Face `datasets` folder.

`data-00000-of-00045.arrow` ... are Arrow IPC streams; with `state.json` and `dataset_info.json` beside them
`datasets.load_from_disk` opens the folder as it is. `heldout/` inside it is a second such set, disjoint by prompt
cluster. `set.json` is written last: its presence means the set is complete. Training imports this module and nothing
else of curation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

SET_CARD = "set.json"
"""Written last. Recipe, counts, digests of what went in, target and tokenizer, and a digest of every shard."""

HELDOUT = "heldout"
"""Sub-folder of held-out rows, itself a `datasets` folder."""

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("seq_len", pa.int32()),
        ("id", pa.string()),
        ("source", pa.string()),
        ("domain", pa.string()),
    ]
)
"""Columns of a set. The first three are what other trainers read."""

_VERSION = re.compile(r"^tokenized_v(\d+)$")


@dataclass(frozen=True, slots=True)
class SetRow:
    """One document to learn from."""

    input_ids: list[int]
    """Prompt and completion, as the engine saw them."""
    loss_mask: list[int]
    """1 on what the target generated, same length as `input_ids`."""
    id: str
    source: str
    domain: str


def next_free(parent: Path) -> Path:
    """Return `parent/tokenized_vN` with the smallest N >= 1 above every existing one."""
    taken = (
        [int(m.group(1)) for path in parent.iterdir() if (m := _VERSION.match(path.name))] if parent.is_dir() else []
    )
    return parent / f"tokenized_v{max(taken, default=0) + 1}"


def shard_name(index: int, total: int) -> str:
    """Return the file name of shard `index` (0-based) of `total`, as `datasets` names them."""
    return f"data-{index:05d}-of-{total:05d}.arrow"


def read_set_card(folder: Path) -> dict[str, Any]:
    """Return `set.json` of a complete set.

    Raises:
        ValueError: the folder is missing, or is not a complete set; says what to do.
    """
    path = folder / SET_CARD
    if not folder.is_dir():
        raise ValueError(f"no set {folder}; `curate build --balance` makes one")
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {SET_CARD}: not a set, or one whose build did not finish; run `curate build` again"
        )
    try:
        return orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON; run `curate build` again") from error


def list_arrow_shards(folder: Path) -> list[Path]:
    """Return the Arrow files of a set (or of its `heldout/`) in order."""
    return sorted(folder.glob("data-*-of-*.arrow"))


def open_table(folder: Path) -> pa.Table:
    """Return a set (or its `heldout/`) as one memory-mapped table; nothing is read until it is used.

    Raises:
        ValueError: there is no shard, or one is missing or damaged; names it.
    """
    paths = list_arrow_shards(folder)
    if not paths:
        raise ValueError(f"{folder} holds no data-*.arrow")
    expected = [shard_name(index, len(paths)) for index in range(len(paths))]
    if [path.name for path in paths] != expected:
        raise ValueError(
            f"{folder} lacks shards: found {len(paths)}, the last named {paths[-1].name}; copy the set again"
        )
    return pa.concat_tables([_map_shard(path) for path in paths])


def read_rows(folder: Path) -> Iterator[SetRow]:
    """Yield the rows of a set (or of its `heldout/`) in order."""
    for batch in open_table(folder).to_batches(max_chunksize=1000):
        for row in batch.to_pylist():
            yield SetRow(row["input_ids"], row["loss_mask"], row["id"], row["source"], row["domain"])


def _map_shard(path: Path) -> pa.Table:
    try:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(
            f"{path} is damaged ({' '.join(str(error).split())[:120]}); copy or build the set again"
        ) from error

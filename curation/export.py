"""`curate export`: a set in the shapes that other trainers read, one JSON object a line.

`specforge_tokens` comes from the set alone: the ids and masks as they are, so nothing is tokenised twice. The other shapes are text:
the rows of the set are sought in the completions that it was built from, in the set's order and with its repeats. Text
loses what only ids can say (where the target's tokens split, what a length limit cut off), so prefer ids where a trainer takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation.arrow_sets import HELDOUT, SET_CARD, SetRow, read_rows, read_set_card
from curation.corpus import Corpus, open_corpus
from curation.facts import ReadingSettings
from curation.options import ExportOptions
from datagen import shards

_SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


@dataclass(frozen=True, slots=True)
class Exported:
    """Files that were written, and the rows in each."""

    folder: Path
    rows: dict[str, int]


def export(options: ExportOptions) -> Exported:
    """Write a set as JSONL: `train.jsonl`, and `heldout.jsonl` where rows are held out.

    Raises:
        ValueError: not a set, the output exists or cannot be written, or completions are gone that the text comes from.
    """
    card = read_set_card(options.folder)
    out = options.out or options.folder.resolve().parent / f"{options.folder.resolve().name}_{options.to}"
    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or remove it first")
    parts = {"train": options.folder} | ({"heldout": options.folder / HELDOUT} if card.get("heldout") else {})
    corpus = None if options.to == "specforge_tokens" else _corpus(options, card)
    try:
        out.mkdir(parents=True)
        counts: dict[str, int] = {}
        for name, folder in parts.items():
            lines = _count(
                _token_lines(folder) if corpus is None else _text_lines(folder, corpus, options), counts, name
            )
            shards.publish(out / f"{name}.jsonl", lines)
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}; choose another --out") from error
    return Exported(out, counts)


def conversation(row: dict[str, Any], turn: int) -> list[dict[str, Any]]:
    """Return the messages of one document: a row's prompt and completion, or its history up to assistant turn `turn`.

    Thinking is `reasoning_content`, as servers return it.
    """
    messages = [_renamed(message) for message in row["messages"]]
    if turn >= 0:
        places = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index > 0]
        return messages[: places[turn] + 1]
    answer = {"role": "assistant", "content": row["completion"]}
    for key in ("reasoning", "tool_calls"):
        if row.get(key):
            answer[key] = row[key]
    return [*messages, _renamed(answer)]


def _specforge(id_: str, messages: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    return {"id": id_, "conversations": messages, **_tools(row)}


def _openai(id_: str, messages: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    return {"messages": messages, **_tools(row)}


def _sharegpt(id_: str, messages: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    turns = [{"from": _SHAREGPT_ROLES[message["role"]], "value": message["content"]} for message in messages]
    return {"id": id_, "conversations": turns, **_tools(row)}


_TEXT_SHAPES: dict[str, Callable[[str, list[dict[str, Any]], dict[str, Any]], dict[str, Any]]] = {
    "specforge": _specforge,
    "openai": _openai,
    "sharegpt": _sharegpt,
}


def _token_lines(folder: Path) -> Iterator[bytes]:
    for row in read_rows(folder):
        yield shards.encode_row({"id": row.id, "input_ids": row.input_ids, "loss_mask": row.loss_mask})


def _text_lines(folder: Path, corpus: Corpus, options: ExportOptions) -> Iterator[bytes]:
    names = [_split_id(row) for row in read_rows(folder)]
    positions = _positions(corpus, [id_ for id_, _ in names], options)
    shape = _TEXT_SHAPES[options.to]
    for (id_, turn), row in zip(names, corpus.rows(positions), strict=True):
        yield shards.encode_row(shape(id_ if turn < 0 else f"{id_}#{turn}", conversation(row, turn), row))


def _split_id(row: SetRow) -> tuple[str, int]:
    """Return the id of the row behind a document, and the turn of its history (-1 for its own completion)."""
    id_, mark, turn = row.id.rpartition("#")
    return (id_, int(turn)) if mark and turn.isdigit() else (row.id, -1)


def _positions(corpus: Corpus, ids: list[str], options: ExportOptions) -> np.ndarray:
    """Return where the rows of a set are in the corpus."""
    known = corpus.facts.select("id").with_row_index("at").unique("id", keep="first")
    found = pl.DataFrame({"id": ids}).join(known, on="id", how="left", maintain_order="left")["at"]
    missing = found.null_count()
    if missing:
        raise ValueError(
            f"{missing:,} of {len(ids):,} rows of {options.folder} are not in {corpus.folder}; "
            "give --input with the completions it was built from, or use --to specforge_tokens"
        )
    return found.cast(pl.Int64).to_numpy()


def _corpus(options: ExportOptions, card: dict[str, Any]) -> Corpus:
    folder = options.input or Path(card["input"].get("folder", "completions_raw"))
    if not folder.is_dir():
        raise ValueError(f"no folder {folder} with the completions behind {options.folder / SET_CARD}; give --input")
    reading = ReadingSettings.model_validate(card["recipe"]["reading"])
    return open_corpus(folder, settings=reading, cache=options.cache)


def _renamed(message: dict[str, Any]) -> dict[str, Any]:
    return {("reasoning_content" if key == "reasoning" else key): value for key, value in message.items()}


def _tools(row: dict[str, Any]) -> dict[str, Any]:
    return {"tools": row["tools"]} if row.get("tools") else {}


def _count(lines: Iterator[bytes], counts: dict[str, int], name: str) -> Iterator[bytes]:
    counts[name] = 0
    for line in lines:
        counts[name] += 1
        yield line

"""Evaluation sets as lists of items: local files in the layouts that benchmarks come in, or names fetched from the hub.

A layout is known by its fields: HumanEval (`prompt`, `task_id`), MBPP (`text`, `code`), GSM8K (`question`), MATH
(`problem`), MT-bench and Spec-Bench (`turns`), BFCL (`question` as turns of messages), headerless TSV (MGSM), and any
rows with `prompt`, `instruction`, `question`, `problem`, `messages`, `conversations` or `text`. Every turn of a user is
an item of its own.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

HUB_SETS: dict[str, tuple[str, str | None, str]] = {
    "gsm8k": ("openai/gsm8k", "main", "test"),
    "math_500": ("HuggingFaceH4/MATH-500", None, "test"),
    "humaneval": ("openai/openai_humaneval", None, "test"),
    "mbpp": ("google-research-datasets/mbpp", "full", "test"),
    "mt_bench": ("HuggingFaceH4/mt_bench_prompts", None, "train"),
}
"""Repository, configuration and split of the sets that can be named."""

_QUESTION_FIELDS = (
    "turns",
    "prompt",
    "instruction",
    "question",
    "problem",
    "messages",
    "conversations",
    "text",
    "input",
)
_ID_FIELDS = ("task_id", "question_id", "unique_id", "id", "prompt_id")


@dataclass(frozen=True, slots=True)
class EvaluationItem:
    """One question of an evaluation set."""

    benchmark: str
    """Name of the set, e.g. gsm8k."""
    id: str
    """Name of the item in it."""
    text: str
    """What a model is asked; never its solution, which a target may well find by itself."""


def load_items(against: Sequence[str | Path]) -> list[EvaluationItem]:
    """Return the items of evaluation sets, in order.

    Args:
        against: paths of files, or names in `HUB_SETS`. A file's benchmark is named after it (and its folder where the
            file has a generic name).

    Raises:
        ValueError: no such file or name, a file that cannot be read, or rows without a question.
    """
    return [item for name in against for item in _load_one(name)]


def items_of(benchmark: str, rows: Iterable[Any]) -> list[EvaluationItem]:
    """Return the items of rows in any known layout.

    Raises:
        ValueError: a row has no field that holds a question.
    """
    items = []
    for number, row in enumerate(rows):
        record = _record(row)
        turns = _questions(record)
        if not turns:
            known = ", ".join(_QUESTION_FIELDS)
            raise ValueError(f"evaluation set {benchmark}: row {number} has no question (fields sought: {known})")
        name = str(next((record[field] for field in _ID_FIELDS if record.get(field) is not None), number))
        items += [
            EvaluationItem(benchmark, name if len(turns) == 1 else f"{name}/{turn}", text)
            for turn, text in enumerate(turns)
        ]
    return items


def _load_one(name: str | Path) -> list[EvaluationItem]:
    path = Path(name)
    if path.is_file():
        return items_of(_benchmark_name(path), _read_rows(path))
    if str(name) in HUB_SETS:
        return items_of(str(name), _fetch(str(name)))
    raise ValueError(f"no evaluation set {str(name)!r}: give a file, or one of {', '.join(HUB_SETS)}")


def _benchmark_name(path: Path) -> str:
    """Return the file's name without suffixes, or its folder's where the file is just called `test` or `question`."""
    stem = path.name.split(".")[0].lower()
    return (
        f"{path.resolve().parent.name.lower()}" if stem in ("test", "train", "question", "questions", "data") else stem
    )


def _fetch(name: str) -> Iterator[dict[str, Any]]:
    import datasets  # here: only named sets need the hub

    repository, config, split = HUB_SETS[name]
    try:
        yield from datasets.load_dataset(repository, config, split=split)
    except (OSError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"evaluation set {name} cannot be fetched ({reason}): give a local file of it") from error


def _read_rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a file by its suffix, `.gz` allowed on top."""
    kind = next((suffix for suffix in reversed(path.suffixes) if suffix != ".gz"), "")
    if kind == ".parquet":
        import pyarrow.parquet as parquet  # here: most evaluation sets are JSONL

        yield from parquet.read_table(path).to_pylist()
        return
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
        if kind in (".tsv", ".csv"):
            yield from _read_table(text, "\t" if kind == ".tsv" else ",")
        else:
            yield from _read_json(text)
    except ValueError as error:  # of UTF-8 and of JSON
        raise ValueError(f"{path}: not an evaluation set: {error}") from error


def _read_json(text: str) -> list[Any]:
    """Return the rows of JSON lines, whatever the file is called, or of one JSON array."""
    if text.lstrip().startswith("["):
        return orjson.loads(text)
    return [orjson.loads(line) for line in text.split("\n") if line.strip()]


def _read_table(text: str, delimiter: str) -> Iterator[dict[str, str] | list[str]]:
    """Yield rows as mappings where the first line names a question field, else as lists."""
    rows = csv.reader(
        text.splitlines(), delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    )
    header: list[str] | None = None
    for number, row in enumerate(rows):
        if number == 0 and any(name.lower() in _QUESTION_FIELDS for name in row):
            header = row
        elif row:
            yield dict(zip(header, row, strict=False)) if header else row


def _record(row: Any) -> dict[str, Any]:
    """Return a row as a mapping with lower-case keys; a row without names has its question first."""
    if isinstance(row, dict):
        return {str(key).lower(): value for key, value in row.items()}
    return {"question": row[0] if isinstance(row, list) and row else row}


def _questions(record: dict[str, Any]) -> list[str]:
    """Return the user turns of a row."""
    for field in _QUESTION_FIELDS:
        turns = [turn for turn in _flatten(record.get(field)) if turn.strip()]
        if turns:
            extra = record.get("input") if field == "instruction" else None
            return [f"{turns[0]}\n{extra}"] if extra else turns
    return []


def _flatten(value: Any) -> Iterator[str]:
    """Yield the texts of a string, a list of turns, or (nested) lists of messages by a user."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _flatten(part)
    elif isinstance(value, dict) and value.get("role", value.get("from", "user")) in ("user", "human"):
        yield from _flatten(value.get("content", value.get("value")))

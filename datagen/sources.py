"""Sources: the rows of a manifest's source, the format that was settled for them, and what its filters let through.

Rows stream: nothing here holds more than a few. What a row becomes (a conversation, its turns) is decided by
`datagen.formats` and `datagen.turns`; rows come from local files or, through `datagen.hub`, from the hub.
"""

from __future__ import annotations

import glob
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datagen.formats import detect, read_row
from datagen.messages import Unusable
from datagen.rows import Located, Problems, read_rows
from datagen.turns import Step, steps
from manifests.schema import Source

_DETECT_ROWS = 64
"""Rows that `format: auto` looks at before it gives up."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that may be asked."""

    steps: list[Step]
    tools: list[dict[str, Any]] | None
    where: str
    """File and line, for reports."""


class SourceReader:
    """The rows of one source, and what was found while reading them."""

    def __init__(self, source: Source, rows: Callable[[Problems], Iterator[Located]]) -> None:
        """Keep what is needed; nothing is read.

        Args:
            source: what the manifest says of it.
            rows: yields its rows, and counts the unreadable ones in what it is given.
        """
        self.source = source
        self._rows = rows
        self.problems = Problems()
        """Rows that cannot be asked, by reason."""
        self.format: str = source.format
        """Row format; what was decided, where the manifest says `auto`."""
        self.column = source.column

    def candidates(self) -> Iterator[Candidate]:
        """Yield every row that may be asked, in file order.

        Raises:
            ValueError: no such files or data set, or `auto` cannot tell the format.
        """
        for where, row in self._settled(self._rows(self.problems)):
            try:
                yield self._candidate(row, where)
            except Unusable as unusable:
                self.problems.add(unusable.reason, where)

    def _candidate(self, row: dict[str, Any], where: str) -> Candidate:
        filters = self.source.filters
        if not _matches(row, filters.where):
            raise Unusable("where")
        if filters.licenses is not None and "license" in row and not _licensed(row["license"], filters.licenses):
            raise Unusable("license")
        conversation = read_row(row, self.format, self.column)
        found = steps(conversation, self.source.turns, self.source.system == "keep", filters.placeholders == "keep")
        asked = found[-1].messages[-1]["content"] or ""
        if len(asked) < filters.min_prompt_chars:
            raise Unusable("min_prompt_chars")
        if filters.max_prompt_chars is not None and _num_chars(found) > filters.max_prompt_chars:
            raise Unusable("max_prompt_chars")
        return Candidate(found, conversation.tools, where)

    def _settled(self, rows: Iterator[Located]) -> Iterator[Located]:
        """Decide the format from the first rows where the manifest leaves it open, and yield all rows."""
        if self.format != "auto":
            return rows
        first = list(itertools.islice(rows, _DETECT_ROWS))
        found = next((found for _, row in first if (found := detect(row)) is not None), None)
        if self.column is not None:
            found = ("prompt", self.column) if found is None or found[0] == "prompt" else (found[0], self.column)
        if found is None and first:
            columns = ", ".join(name[:40] for name in list(first[0][1])[:8])
            raise ValueError(
                f"source {self.source.name!r}: cannot tell the format of rows with columns {columns}; give `format`, "
                "or `format: prompt` with `column` (a number for files without a header)"
            )
        self.format, self.column = found or ("messages", None)
        return itertools.chain(first, rows)


def file_rows(source: Source, manifest_folder: Path, problems: Problems) -> Iterator[Located]:
    """Yield the rows of a source's local files, in name order.

    Raises:
        ValueError: a glob matches nothing, or a file has no form that is known.
    """
    has_header = not (source.column or "").isdecimal()
    for path in find_files(source, manifest_folder):
        with path.open("rb") as file:
            yield from read_rows(file, path.name, problems, has_header)


def find_files(source: Source, manifest_folder: Path) -> list[Path]:
    """Return the files of a source in name order, each once.

    Raises:
        ValueError: a glob matches nothing.
    """
    patterns = (source.files,) if isinstance(source.files, str) else source.files or ()
    found: set[Path] = set()
    for pattern in patterns:
        matches = [
            path
            for name in glob.glob(str(manifest_folder / Path(pattern).expanduser()), recursive=True)
            if (path := Path(name)).is_file()
        ]
        if not matches:
            raise ValueError(f"source {source.name!r}: no file matches {pattern!r} (sought in {manifest_folder})")
        found.update(matches)
    return sorted(found)


def same_license(one: str, other: str) -> bool:
    """Return whether two spellings name the same licence: `CC BY 4.0` and `cc-by-4.0` do."""
    return _plain_license(one) == _plain_license(other)


def _plain_license(name: str) -> str:
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def _licensed(value: Any, allowed: Iterable[str]) -> bool:
    return isinstance(value, str) and any(same_license(value, name) for name in allowed)


def _matches(row: dict[str, Any], where: dict[str, tuple[str | int | bool, ...]]) -> bool:
    """Return whether every column has one of its allowed values; a list column needs one of them among its items."""
    for column, allowed in where.items():
        value = row.get(column)
        values = value if isinstance(value, list) else [value]
        if not any(item in allowed and type(item) in {type(a) for a in allowed if a == item} for item in values):
            return False
    return True


def _num_chars(found: list[Step]) -> int:
    return sum(len(message["content"] or "") for step in found for message in step.messages)

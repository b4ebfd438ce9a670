"""Files of any shape become rows, filters drop what they should, and what cannot be read is counted, with its place."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from datagen.rows import Problems, read_rows
from datagen.sources import SourceReader, file_rows, same_license
from manifests.schema import Filters, Source

ROWS = [{"prompt": "one"}, {"prompt": "two\u00e9\U0001f600"}, {"prompt": "three"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def _read(path: Path, has_header: bool = True) -> tuple[list[dict[str, Any]], Problems]:
    problems = Problems()
    with path.open("rb") as file:
        return [row for _, row in read_rows(file, path.name, problems, has_header)], problems


def _source(path: Path, **changes: Any) -> Source:
    return Source(**{"name": "a", "files": str(path), "domain": "chat", "license": "MIT", "count": 1, **changes})


def _reader(path: Path, **changes: Any) -> SourceReader:
    source = _source(path, **changes)
    return SourceReader(source, partial(file_rows, source, path.parent))


def _asked(reader: SourceReader) -> list[str]:
    return [candidate.steps[0].messages[-1]["content"] for candidate in reader.candidates()]


def _parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl", b"\xef\xbb\xbf" + LINES),
        ("a.jsonl", LINES.replace(b"\n", b"\r\n\r\n")),
        ("a.jsonl", LINES.rstrip()),
        ("a.json", LINES),
        ("a.json", json.dumps(ROWS).encode()),
        ("a.json", b"\xef\xbb\xbf" + json.dumps(ROWS, indent=2).encode()),
        ("a.jsonl", json.dumps(ROWS, indent=2, ensure_ascii=False).encode()),
        ("a.jsonl", "\n".join(json.dumps(row, indent=2) for row in ROWS).encode()),
        ("a.jsonl.gz", gzip.compress(LINES)),
        ("a.jsonl.gz", gzip.compress(LINES[:17]) + gzip.compress(LINES[17:])),
        ("a.jsonl.zst", zstandard.compress(LINES)),
        ("a.jsonl.zst", zstandard.compress(LINES[:17]) + zstandard.compress(LINES[17:])),
        ("a.json.gz", gzip.compress(json.dumps(ROWS).encode())),
        ("a.csv", "prompt\none\ntwo\u00e9\U0001f600\nthree\n".encode()),
        ("a.csv", '\ufeffprompt\r\n"one"\r\n"two\u00e9\U0001f600"\r\nthree\r\n'.encode()),
        ("a.tsv", "prompt\none\ntwo\u00e9\U0001f600\nthree\n".encode()),
    ],
)
def test_a_file_gives_the_same_rows_in_every_shape(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    rows, problems = _read(tmp_path / name)
    assert rows == ROWS
    assert not problems.counts


def test_parquet_rows_are_read_in_batches(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"prompt": str(number)} for number in range(600)]), tmp_path / "a.parquet")
    rows, _ = _read(tmp_path / "a.parquet")
    assert rows == [{"prompt": str(number)} for number in range(600)]


def test_a_table_without_a_header_numbers_its_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\t1\ntwo\t2\n")
    assert _read(tmp_path / "a.tsv", has_header=False)[0] == [{"0": "one", "1": "1"}, {"0": "two", "1": "2"}]
    assert _asked(_reader(tmp_path / "a.tsv", format="prompt", column="0")) == ["one", "two"]


def test_a_stray_quotation_mark_in_a_tab_separated_file_swallows_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('"Hi, she said\t1\ntwo\t2\n')
    assert [row["0"] for row in _read(tmp_path / "a.tsv", has_header=False)[0]] == ['"Hi, she said', "two"]


def test_quoted_fields_may_hold_lines_and_separators(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt,answer\n"one, or\ntwo",2\n')
    (tmp_path / "a.tsv").write_text('prompt\tanswer\n"one\tor\ntwo"\t2\n')
    assert _read(tmp_path / "a.csv")[0] == [{"prompt": "one, or\ntwo", "answer": "2"}]
    assert _read(tmp_path / "a.tsv")[0] == [{"prompt": "one\tor\ntwo", "answer": "2"}]


def test_a_large_array_is_read_across_chunk_borders(tmp_path: Path) -> None:
    rows = [{"prompt": '\\"\u00e9\U0001f600' * 3000, "number": number} for number in range(200)]
    for ensure_ascii in (True, False):
        (tmp_path / "a.json").write_text(json.dumps(rows, ensure_ascii=ensure_ascii), encoding="utf-8")
        assert _read(tmp_path / "a.json")[0] == rows


@pytest.mark.hostile
def test_broken_lines_are_counted_with_the_place_of_the_first(tmp_path: Path) -> None:
    lines = [
        b'{"prompt": "good"}',
        b'{"prompt": "cut',
        b"[1]",
        b'"text"',
        b'{"prompt": "caf\xe9"}',
        b"",
        b'{"prompt": NaN}',
        b"{" * 100_000,
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    rows, problems = _read(tmp_path / "a.jsonl")
    assert [row["prompt"] for row in rows][:1] == ["good"]
    assert len(rows) == 2
    assert problems.counts == {"not_json": 2, "not_an_object": 2, "not_utf8": 1}
    assert problems.first == {"not_json": "a.jsonl:2", "not_an_object": "a.jsonl:3", "not_utf8": "a.jsonl:5"}


@pytest.mark.hostile
def test_a_broken_first_line_does_not_hide_the_ones_after_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "cut\n' + LINES)
    rows, problems = _read(tmp_path / "a.jsonl")
    assert rows == ROWS
    assert problems.first == {"not_json": "a.jsonl:1"}


@pytest.mark.hostile
@pytest.mark.parametrize(
    "broken", [b'[{"prompt": "one"}, {"prompt": oops}, {"prompt": "three"}]', b'[{"prompt": "one"}, {"prompt": "tw']
)
def test_a_broken_array_gives_what_comes_before_the_break(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "a.json").write_bytes(broken)
    rows, problems = _read(tmp_path / "a.json")
    assert rows == ROWS[:1]
    assert problems.counts == {"not_json": 1}
    assert "value 2" in problems.first["not_json"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:35dc\nsize 446564\n", "git_lfs_pointer"),
        ("a.parquet", b"version https://git-lfs.github.com/spec/v1\noid sha256:35dc\nsize 446564\n", "git_lfs_pointer"),
        ("a.parquet", b"PAR1 and then nothing", "damaged_parquet"),
        ("a.jsonl.gz", b"not gzip at all", "damaged_archive"),
        ("a.jsonl.gz", gzip.compress(LINES * 2000)[:-20], "damaged_archive"),
        ("a.jsonl.zst", b"not zstd at all!", "damaged_archive"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_counted(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert _read(tmp_path / name)[1].counts == {reason: 1}


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_nesting_without_end_is_a_broken_value(tmp_path: Path, name: str) -> None:
    deep = b'{"a": ' * 200_000 + b"1" + b"}" * 200_000
    (tmp_path / name).write_bytes(deep if name == "a.jsonl" else b"[" + deep + b"]")
    assert _read(tmp_path / name)[1].counts == {"not_json": 1}


@pytest.mark.hostile
def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.json", "a.csv"):
        (tmp_path / name).touch()
        assert _read(tmp_path / name)[0] == []


def test_a_file_without_a_known_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(ValueError, match=r"a.txt: cannot tell its form; expected one of .jsonl"):
        _asked(_reader(tmp_path / "a.txt"))


def test_auto_decides_from_the_first_row_that_tells_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{"question": "q", "answer": "a"}\n')
    reader = _reader(tmp_path / "a.jsonl")
    assert _asked(reader) == ["q"]
    assert (reader.format, reader.column) == ("prompt", "question")
    assert reader.problems.counts == {"no_such_column": 1}


def test_auto_gives_up_with_the_columns_it_found(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a document", "url": "x"}\n')
    with pytest.raises(ValueError, match="cannot tell the format of rows with columns text, url; give `format`"):
        _asked(_reader(tmp_path / "a.jsonl"))


def test_globs_are_read_in_name_order_each_file_once(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": name}) + "\n")
    reader = _reader(tmp_path / "none", files=("*.jsonl", "a.*"))
    assert _asked(reader) == ["a", "b", "c"]


def test_a_glob_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="source 'a': no file matches 'none.jsonl'"):
        _asked(_reader(tmp_path / "x", files="none.jsonl"))


@pytest.mark.parametrize(
    ("filters", "kept", "dropped"),
    [
        (Filters(where={"kind": ("x",)}), ["1", "22"], {"where": 1}),
        (Filters(where={"tags": ("t",)}), ["22"], {"where": 2}),
        (Filters(where={"good": (True,)}), ["333"], {"where": 2}),
        (Filters(licenses=("CC-BY-4.0",)), ["1", "22"], {"license": 1}),
        (Filters(min_prompt_chars=2), ["22", "333"], {"min_prompt_chars": 1}),
        (Filters(max_prompt_chars=2), ["1", "22"], {"max_prompt_chars": 1}),
    ],
)
def test_filters_drop_and_count(tmp_path: Path, filters: Filters, kept: list[str], dropped: dict[str, int]) -> None:
    rows = [
        {"prompt": "1", "kind": "x", "good": 1, "license": "cc-by-4.0"},
        {"prompt": "22", "kind": "x", "tags": ["s", "t"], "license": "CC BY 4.0"},
        {"prompt": "333", "kind": "y", "good": True, "license": "MIT"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = _reader(tmp_path / "a.jsonl", filters=filters)
    assert _asked(reader) == kept
    assert reader.problems.counts == dropped


def test_reading_stops_with_whoever_reads(tmp_path: Path) -> None:
    def endless(problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
        while True:
            yield "somewhere", {"prompt": "again"}

    reader = SourceReader(_source(tmp_path, format="prompt", column="prompt"), endless)
    assert next(reader.candidates()).where == "somewhere"


def test_licences_are_compared_by_name_and_not_by_spelling() -> None:
    assert same_license("CC BY 4.0", "cc-by-4.0")
    assert not same_license("CC BY-NC 4.0", "cc-by-4.0")

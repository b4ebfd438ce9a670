"""Reading: every line is counted once, nothing is read twice, and rows are found again by position."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curation import corpus as corpus_module
from curation.corpus import Corpus, Counts, open_corpus
from curation.facts import Flag, ReadingSettings
from curation.files import read_lines
from curation.reading import row_of


def row(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"id{number}",
        "source": "here",
        "domain": "chat",
        "messages": [{"role": "user", "content": f"What is the answer to question number {number}?"}],
        "completion": f"The answer to it is {number}.",
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [4, 5],
        "finish_reason": "stop",
        **changes,
    }


def shard(folder: Path, *lines: bytes | dict[str, Any], name: str = "completions_000000.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join((line if isinstance(line, bytes) else orjson.dumps(line)) + b"\n" for line in lines))
    return path


def opened(folder: Path, **settings_: Any) -> Corpus:
    return open_corpus(folder, settings=ReadingSettings(**settings_))


def reasons(folder: Path) -> dict[str, int]:
    return opened(folder).rejects


def test_facts_say_what_a_row_holds(tmp_path: Path) -> None:
    shard(tmp_path, row(7, reasoning="Let me think.", license="MIT"))
    fact = opened(tmp_path).facts.row(0, named=True)
    assert (fact["id"], fact["source"], fact["domain"], fact["license"]) == ("id7", "here", "chat", "MIT")
    assert (fact["prompt_tokens"], fact["completion_tokens"], fact["has_ids"], fact["tokens_estimated"]) == (
        3,
        2,
        True,
        False,
    )
    assert (fact["num_turns"], fact["thinking"], fact["finish_reason"], fact["language"]) == (1, True, "stop", "en")
    assert (fact["shard"], fact["line"], fact["offset"], fact["flags"]) == ("completions_000000.jsonl", 1, 0, 0)


def test_rows_without_ids_get_estimated_tokens_and_a_flag(tmp_path: Path) -> None:
    foreign = {"messages": [{"role": "user", "content": "a" * 40}], "completion": "b" * 80}
    shard(tmp_path, foreign)
    fact = opened(tmp_path).facts.row(0, named=True)
    assert (fact["prompt_tokens"], fact["completion_tokens"], fact["tokens_estimated"]) == (10, 20, True)
    assert fact["flags"] & Flag.TOKENS_ESTIMATED
    assert (fact["id"], fact["source"]) == ("completions_000000.jsonl:1", "unknown")


def test_positions_follow_shard_order_then_line_order(tmp_path: Path) -> None:
    shard(tmp_path, row(2), row(3), name="completions_000001.jsonl")
    shard(tmp_path, row(0), row(1), name="completions_000000.jsonl")
    shard(tmp_path, row(9), name="elsewhere.jsonl")
    assert opened(tmp_path).facts["id"].to_list() == ["id0", "id1", "id2", "id3", "id9"]


def test_rows_are_found_again_in_the_order_asked(tmp_path: Path) -> None:
    shard(tmp_path, row(0), b"", row(1), name="completions_000000.jsonl")
    (tmp_path / "packed.jsonl.gz").write_bytes(
        gzip.compress(orjson.dumps(row(2)) + b"\n" + orjson.dumps(row(3)) + b"\n")
    )
    found = opened(tmp_path)
    assert [r["id"] for r in found.rows([3, 0, 2, 1, 3])] == ["id3", "id0", "id2", "id1", "id3"]
    assert list(found.completions([1])) == ["The answer to it is 1."]
    assert list(found.prompts([2])) == ["What is the answer to question number 2?"]


def test_the_prompt_joins_system_and_user_turns(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("user", "One?"), ("assistant", "Yes."), ("user", "Two?")]
    shard(tmp_path, row(messages=[{"role": role, "content": text} for role, text in turns]))
    found = opened(tmp_path)
    assert list(found.prompts([0])) == ["Be brief.\nOne?\nTwo?"]
    assert found.facts["num_turns"].to_list() == [2]


def test_the_domain_is_the_rows_then_the_manifests_then_the_contents(tmp_path: Path) -> None:
    bare = {"messages": [{"role": "user", "content": "go"}], "completion": "```python\nprint(1)\n```"}
    shard(tmp_path, row(0), {**bare, "source": "known"}, {**bare, "source": "new"})
    found = opened(tmp_path, source_domains={"known": "math"})
    assert found.facts["domain"].to_list() == ["chat", "math", "code"]
    assert found.facts["domain_manifest"].to_list() == ["chat", None, None]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("line", "counts"),
    [
        (b'{"messages": [{"role": "user", "content": "a \\ud835 b"}], "completion": "c"}', Counts(1, 0, 1, 0, 0)),
        (
            '{"messages": [{"role": "user", "content": "caf\u00e9"}], "completion": "c"}'.encode("cp1252"),
            Counts(1, 0, 1, 0, 0),
        ),
        (b'{"messages": [{"role": "user", "content": "tab\there"}], "completion": "c"}', Counts(1, 0, 1, 0, 0)),
        (b'{"messages": [{"role": "user", "content": "q"}], "completion": "c", "score": NaN}', Counts(1, 0, 1, 0, 0)),
        (
            b'{"messages": [{"role": "user", "content": "q"}], "completion": "c", "completion": "d"}',
            Counts(1, 1, 0, 0, 0),
        ),
        ('{"messages": [{"role": "user", "content": "a\u2028b"}], "completion": "c"}'.encode(), Counts(1, 1, 0, 0, 0)),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}], "completion": "c"}',
            Counts(1, 1, 0, 0, 0),
        ),
        (b'{"messages": [{"role": "user", "content": "q"}], "completion": null}', Counts(1, 1, 0, 0, 0)),
        (
            b'{"messages": [{"role": "user", "content": "q"}], "completion": "c", "big": 123456789012345678901234567890}',
            Counts(1, 1, 0, 0, 0),
        ),
        (b"   \t ", Counts(1, 0, 0, 0, 1)),
        (b"\x00\x00", Counts(1, 0, 0, 0, 1)),
    ],
)
def test_odd_lines_are_read_or_repaired(tmp_path: Path, line: bytes, counts: Counts) -> None:
    shard(tmp_path, line)
    assert opened(tmp_path).counts == counts


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"messages": [{"role": "user", "content": "q"}], "completion": "c"', "not_json"),
        (b'"only a string"', "not_an_object"),
        (b"[1, 2]", "not_an_object"),
        (b'{"text": "no answer"}', "no_completion"),
        (b'{"score": 3}', "no_prompt"),
        (b'{"messages": [], "completion": "c"}', "no_user_turn"),
        (b'{"messages": ["hello"], "completion": "c"}', "bad_messages"),
        (b'{"messages": [{"role": "user", "content": {"a": 1}}], "completion": "c"}', "bad_messages"),
        (b'{"messages": [{"role": "wizard", "content": "q"}], "completion": "c"}', "unknown_role"),
        (b'{"messages": [{"role": "user", "content": "q"}], "completion": {"a": 1}}', "completion_not_text"),
        (b'{"messages": [{"role": "user", "content": "q"}]}', "no_completion"),
        (b"[" * 100_000, "nested_too_deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not_json"),
    ],
)
def test_unusable_lines_are_rejected_with_a_reason(tmp_path: Path, line: bytes, reason: str) -> None:
    shard(tmp_path, row(0), line, row(1))
    found = opened(tmp_path)
    assert found.rejects == {reason: 1}
    assert found.counts == Counts(3, 2, 0, 1, 0)


@pytest.mark.hostile
def test_rejected_lines_are_listed_with_their_place(tmp_path: Path) -> None:
    shard(tmp_path, row(0), b"{broken", row(1))
    found = opened(tmp_path)
    note = json.loads(found.rejected.read_text())
    begin = len(orjson.dumps(row(0))) + 1
    assert note == {
        "shard": "completions_000000.jsonl",
        "line": 2,
        "offset": begin,
        "reason": "not_json",
        "preview": "{broken",
    }


@pytest.mark.hostile
def test_a_shard_still_being_written_is_read_to_its_last_full_line(tmp_path: Path) -> None:
    path = shard(tmp_path, row(0), row(1))
    whole = path.read_bytes()
    path.write_bytes(whole + orjson.dumps(row(2))[:50])
    assert opened(tmp_path).rejects == {"unfinished_last_line": 1}
    path.write_bytes(whole + orjson.dumps(row(2)) + b"\n")
    assert opened(tmp_path).facts["id"].to_list() == ["id0", "id1", "id2"]


@pytest.mark.hostile
def test_files_that_are_not_line_by_line_are_read(tmp_path: Path) -> None:
    rows = [row(0), row(1), "just a string"]
    (tmp_path / "array.jsonl").write_text(json.dumps(rows))
    (tmp_path / "pretty.jsonl").write_text("\n".join(json.dumps(r, indent=2) for r in rows[:2]))
    (tmp_path / "pretty_array.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "crlf.jsonl").write_bytes(b"\r\n".join(orjson.dumps(r) for r in rows[:2]) + b"\r\n")
    (tmp_path / "bom.jsonl").write_bytes(b"\xef\xbb\xbf" + orjson.dumps(row(0)) + b"\n")
    (tmp_path / "utf16.json").write_bytes(json.dumps(rows[:2]).encode("utf-16"))
    (tmp_path / "packed.jsonl.zst").write_bytes(zstandard.compress(orjson.dumps(row(0)) + b"\n"))
    pq.write_table(pa.Table.from_pylist(rows[:2]), tmp_path / "table.parquet")
    (tmp_path / "named.csv").write_text("instruction,output\nAdd,Done\n")
    (tmp_path / "bare.tsv").write_text("How many?\t3\nAnd now?\t4\n")
    (tmp_path / "pointer.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    found = opened(tmp_path)
    by_file = dict(found.facts.group_by(pl.col("shard").cast(pl.String)).len().iter_rows())
    assert by_file == {
        "array.jsonl": 2, "pretty.jsonl": 2, "pretty_array.json": 2, "crlf.jsonl": 2, "bom.jsonl": 1, "utf16.json": 2,
        "packed.jsonl.zst": 1, "table.parquet": 2, "named.csv": 1, "bare.tsv": 2,
    }  # fmt: skip
    assert found.rejects == {"not_an_object": 2, "not_json": 2, "git_lfs_pointer": 1}
    assert [r["id"] for r in found.rows(range(found.facts.height))] == found.facts["id"].to_list()


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["cut.jsonl.gz", "cut.jsonl.zst", "cut.parquet"])
def test_damaged_packed_files_cost_their_own_rows_only(tmp_path: Path, name: str) -> None:
    rng = random.Random(0)
    lines = b"".join(orjson.dumps(row(n, completion=rng.randbytes(400).hex())) + b"\n" for n in range(500))
    packed = {"gz": gzip.compress(lines), "zst": zstandard.compress(lines), "parquet": b"PAR1 nothing"}[
        name.split(".")[-1]
    ]
    shard(tmp_path, row(0))
    (tmp_path / name).write_bytes(packed[: len(packed) // 2])
    found = opened(tmp_path)
    assert found.counts.lines == found.counts.accepted + found.counts.rejected
    assert set(found.rejects) <= {"damaged_compression", "damaged_parquet", "unfinished_last_line"}
    assert found.counts.rejected >= 1


@pytest.mark.hostile
@pytest.mark.slow
def test_a_line_of_forty_megabytes_is_one_row(tmp_path: Path) -> None:
    shard(tmp_path, row(0), row(1, completion="word " * 8_000_000), row(2))
    found = opened(tmp_path)
    assert found.facts["completion_chars"].to_list()[1] == 40_000_000
    assert len(next(found.completions([1]))) == 40_000_000


@pytest.mark.parametrize(
    ("foreign", "messages", "completion"),
    [
        ({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, ["q"], "a"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, ["q"], "a"),
        ({"instruction": "do", "input": "this", "output": "a"}, ["do\nthis"], "a"),
        ({"instruction": "do", "input": "", "response": "a"}, ["do"], "a"),
        ({"prompt": "q", "completion": "a"}, ["q"], "a"),
        ({"question": "q", "answer": 4}, ["q"], "4"),
        ({"system_prompt": "s", "input": [{"role": "user", "content": "q"}], "output": "a"}, ["s", "q"], "a"),
        ({"messages": [{"role": "user", "content": "q"}], "response": "a"}, ["q"], "a"),
        ({"chosen_messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}, ["q"], "a"),
        ({"instruction": "do", "instances": [{"input": "x", "output": "a"}]}, ["do"], "a"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "q"},
                    {"from": "gpt", "value": "a"},
                    {"from": "human", "value": "more"},
                ]
            },
            ["q"],
            "a",
        ),
    ],
)
def test_foreign_shapes_become_rows(
    foreign: dict[str, Any], messages: list[str], completion: str, tmp_path: Path
) -> None:
    path = shard(tmp_path, foreign)
    (line,) = read_lines(path)
    found, _ = row_of(line)
    assert found is not None
    assert [message["content"] for message in found["messages"]] == messages
    assert found["completion"] == completion


def test_reasoning_in_typed_parts_is_kept_apart(tmp_path: Path) -> None:
    answer = [{"type": "reasoning", "text": "hmm"}, {"type": "text", "text": "a"}]
    path = shard(tmp_path, {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer}]})
    (line,) = read_lines(path)
    found, _ = row_of(line)
    assert found is not None and (found["completion"], found["reasoning"]) == ("a", "hmm")


def test_unchanged_shards_are_never_read_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = shard(tmp_path, row(0)), shard(tmp_path, row(1), name="completions_000001.jsonl")
    before = opened(tmp_path)
    read: list[str] = []
    really_read = corpus_module.read_shard
    monkeypatch.setattr(
        corpus_module, "read_shard", lambda path, *a: (read.append(path.name), really_read(path, *a))[1]
    )
    opened(tmp_path)
    os.utime(first)
    opened(tmp_path)
    assert read == []
    shard(tmp_path, row(5), name=second.name)
    after = opened(tmp_path)
    assert read == ["completions_000001.jsonl"]
    assert after.digest != before.digest
    opened(tmp_path, num_perm=64)
    assert len(read) == 3


def test_facts_do_not_depend_on_the_number_of_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "_WORTH_A_POOL_BYTES", 0)
    for index in range(3):
        shard(tmp_path / "in", *(row(index * 10 + n) for n in range(4)), name=f"completions_00000{index}.jsonl")
    one = open_corpus(tmp_path / "in", cache=tmp_path / "one", workers=1)
    two = open_corpus(tmp_path / "in", cache=tmp_path / "two", workers=2)
    assert one.facts.equals(two.facts)
    assert (one.signatures == two.signatures).all()
    assert one.digest == two.digest


def test_a_read_only_folder_keeps_its_facts_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard(tmp_path / "in", row(0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(corpus_module.os, "access", lambda *_: False)
    opened(tmp_path / "in")
    assert not (tmp_path / "in" / ".facts").exists()
    assert list((tmp_path / "cache" / "draftmill").iterdir())


@pytest.mark.parametrize("content", [None, "empty"])
def test_a_missing_or_empty_folder_is_one_clear_error(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "completions_raw"
    if content:
        folder.mkdir()
    with pytest.raises(ValueError, match=r"no folder .*completions_raw|holds no completions"):
        open_corpus(folder)


def test_a_row_that_changed_under_the_facts_is_an_error(tmp_path: Path) -> None:
    path = shard(tmp_path, row(0))
    found = opened(tmp_path)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(ValueError, match="has changed since it was read"):
        list(found.rows([0]))


PIECES = (
    b"\\ud800",
    b"\x00",
    b"\xff",
    b'"',
    b"{",
    b"]",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\r",
    b"\\",
    b"NaN",
    b"null",
)


def damaged(line: bytes, rng: random.Random) -> bytes:
    """Return a line with bytes cut, changed, doubled or put in; newlines excluded, because they would make two lines."""
    for _ in range(rng.randint(0, 4)):
        place = rng.randint(0, len(line))
        head, tail = line[:place], line[place:]
        line = rng.choice(
            (
                head,
                tail,
                head + rng.randbytes(1) + tail[1:],
                head + rng.choice(PIECES) + tail,
                head + head + tail,
                head + tail[3:],
            )
        )
    return line.replace(b"\n", b" ")


@pytest.mark.hostile
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    extra=st.lists(st.binary(max_size=60).map(lambda raw: raw.replace(b"\n", b"")), max_size=20),
)
def test_ten_thousand_damaged_lines_are_each_counted_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, extra: list[bytes]
) -> None:
    rng = random.Random(seed)
    # The first line is whole: it decides whether a file is read line by line.
    lines = [orjson.dumps(row(0)), *(damaged(orjson.dumps(row(number)), rng) for number in range(500)), *extra]
    path = shard(tmp_path_factory.mktemp("fuzz"), *lines)
    seen = dict.fromkeys(("accepted", "repaired", "rejected", "blank"), 0)
    for number, line in enumerate(read_lines(path), start=1):
        assert line.number == number
        found, reason = row_of(line)
        assert (found is None) == (line.blank or reason is not None)
        seen["blank" if line.blank else "rejected" if reason else "repaired" if line.repaired else "accepted"] += 1
    assert sum(seen.values()) == len(lines)
    assert seen["accepted"] >= 1


@pytest.mark.hostile
def test_damaged_lines_leave_the_facts_of_good_ones_as_they_are(tmp_path: Path) -> None:
    rng = random.Random(1)
    lines: list[bytes] = []
    for number in range(300):
        line = bytearray(orjson.dumps(row(number)))
        if number % 3 == 1:
            line[rng.randrange(len(line))] = rng.choice(b'\x00\xff{}"\\')
        lines.append(bytes(line).replace(b"\n", b" "))
    shard(tmp_path, *lines)
    found = opened(tmp_path)
    assert found.counts.lines == 300
    assert found.facts.height == found.counts.accepted + found.counts.repaired
    assert {f"id{number}" for number in range(300) if number % 3 != 1} <= set(found.facts["id"])
    assert found.signatures.shape == (found.facts.height, 128)


def test_reading_needs_little_memory_for_a_large_shard(tmp_path: Path) -> None:
    with (tmp_path / "completions_000000.jsonl").open("wb") as file:
        for number in range(12_000):
            file.write(orjson.dumps(row(number, completion="some words that fill a row up " * 250)) + b"\n")
    code = (
        "import resource, sys; from pathlib import Path; from curation.corpus import open_corpus\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "found = open_corpus(Path(sys.argv[1]))\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, found.facts.height)"
    )
    grown, rows = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
    ).stdout.split()
    assert int(rows) == 12_000
    assert int(grown) < 90  # the shard has 90 MB

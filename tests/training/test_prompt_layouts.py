"""Evaluation files in the layouts they come in: what is asked, with which tools, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from training.prompt_files import read_table
from training.prompt_layouts import read_question

USER = {"role": "user", "content": "Weather in Bern?"}
FUNCTION = {"name": "weather", "parameters": {"type": "dict", "properties": {"celsius": {"type": "float"}}}}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"celsius": {"type": "number"}}}},
}


@pytest.mark.parametrize(
    "row",
    [
        {"question": [[USER]], "function": [FUNCTION]},  # BFCL
        {"messages": [USER], "tools": json.dumps([TOOL])},
        {"responses_create_params": {"input": [USER], "tools": [{"type": "function", "strict": True, **FUNCTION}]}},
        {"conversations": [{"from": "human", "value": "Weather in Bern?"}], "tools": FUNCTION},
    ],
)
def test_tools_reach_the_template_in_one_form(row: dict[str, Any]) -> None:
    question = read_question(row)
    assert question is not None
    assert question.messages == (USER,)
    assert question.tools == (TOOL,)


def test_a_property_called_type_is_no_type() -> None:
    question = read_question(
        {"prompt": "x", "tools": [{"name": "f", "parameters": {"properties": {"type": {"type": "dict"}}}}]}
    )
    assert question is not None
    assert question.tools[0]["function"]["parameters"] == {"properties": {"type": {"type": "object"}}}


def test_self_instruct_asks_the_first_instance() -> None:
    question = read_question({"instruction": "Add.", "instances": [{"input": "1 + 2", "output": "3"}, {"input": "9"}]})
    assert question is not None
    assert question.messages[0]["content"] == "Add.\n1 + 2"


def test_a_chat_with_answers_is_asked_from_its_first_turn() -> None:
    said = [("system", "Be brief."), ("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d")]
    question = read_question({"conversations": [{"from": who, "value": what} for who, what in said]})
    assert question is not None
    assert [message["role"] for message in question.messages] == ["system", "user"]
    assert question.later_turns == ("c",)


def test_a_preference_pair_asks_what_both_answers_answer() -> None:
    chosen = [
        {"role": "system", "content": [{"type": "text", "value": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "value": "Why?"}]},
        {
            "role": "assistant",
            "content": [{"type": "reasoning", "value": "Hm."}, {"type": "text", "value": "Because."}],
        },
    ]
    for field in ("chosen", "chosen_messages"):
        question = read_question({field: chosen, field.replace("chosen", "rejected"): []})
        assert question is not None
        assert [message["content"] for message in question.messages] == ["Be brief.", "Why?"]
    assert read_question({"chosen": "Human: Why? Assistant: Because."}) is None


def test_what_an_assistant_thought_is_not_given_back_to_a_target() -> None:
    thought = {"role": "assistant", "content": [{"type": "thinking", "text": "Hm."}, {"type": "text", "text": "Yes."}]}
    question = read_question(
        {"messages": [{"role": "user", "content": "Sure?"}, thought, {"role": "user", "content": "Why?"}]}
    )
    assert question is not None
    assert [message["content"] for message in question.messages] == ["Sure?", "Yes.", "Why?"]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"prompt": "x", "images": ["a.png"]}, "asks about images"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "part of type 'image_url'"),
        ({"prompt": "x", "tools": "{"}, "not JSON"),
        ({"prompt": "x", "tools": ["weather"]}, "a tool that is str"),
    ],
)
def test_what_a_text_model_cannot_be_asked_is_refused(row: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_question(row)


@pytest.mark.parametrize(
    "row", [{"answer": 4}, {"messages": []}, {"messages": [{"role": "assistant", "content": "b"}]}]
)
def test_a_row_that_asks_nothing_is_none(row: dict[str, Any]) -> None:
    assert read_question(row) is None


def test_parquet_and_lists_inside_an_object_are_read(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": "2"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps({"version": 1, "data": rows}))
    (tmp_path / "row.json").write_text(json.dumps(rows[0], indent=2))
    assert list(read_table(tmp_path / "rows.parquet")) == rows
    assert list(read_table(tmp_path / "rows.json")) == rows
    assert list(read_table(tmp_path / "row.json")) == rows[:1]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS pointer"),
        ("a.parquet", b"PAR1", "no Parquet file"),
        ("a.jsonl", '{"prompt": "caf\xe9"}'.encode("cp1252"), "iconv -f cp1252"),
        ("a.jsonl", b'{"prompt": "a"}\n[1]\n', "row 2: expected an object, found list"),
        ("a.jsonl.gz", b"\x1f\x8b\x08", "is damaged"),
        ("a.txt", b"a", "expected .jsonl"),
    ],
)
def test_files_that_cannot_be_read_say_what_to_do(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        list(read_table(tmp_path / name))

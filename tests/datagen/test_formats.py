"""Each published row format gives the conversation it means, in OpenAI's form."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.formats import READERS, Conversation, detect, read_row
from datagen.messages import Unusable
from datagen.turns import steps
from manifests.schema import RowFormat

USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}
LATER = {"role": "user", "content": "q2"}
NOT_THERE = {"role": "assistant", "content": None}
ADD_TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}},
}


def _call(name: str, arguments: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _reason(row: dict[str, Any], row_format: str) -> str:
    with pytest.raises(Unusable) as caught:
        read_row(row, row_format)
    return caught.value.reason


def test_every_format_of_the_schema_has_a_reader() -> None:
    assert {"auto", *READERS} == set(RowFormat.__args__)


@pytest.mark.parametrize(
    ("row_format", "row", "messages"),
    [
        ("messages", {"messages": [USER, ANSWER]}, [USER, ANSWER]),
        ("messages", {"messages": json.dumps([USER, ANSWER])}, [USER, ANSWER]),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            [USER, ANSWER],
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "q"}], "system": "s"},
            [{"role": "system", "content": "s"}, USER],
        ),
        ("alpaca", {"instruction": "q", "input": "", "output": "a"}, [USER]),
        ("alpaca", {"instruction": "q", "input": "x", "output": "a"}, [{"role": "user", "content": "q\n\nx"}]),
        (
            "alpaca",
            {"instruction": "q", "instances": [{"input": "x", "output": "a"}]},
            [{"role": "user", "content": "q\n\nx"}],
        ),
        ("alpaca", {"instruction": "q2", "input": "", "history": [["q", "a"]]}, [USER, ANSWER, LATER]),
        ("prompt", {"prompt": "q"}, [USER]),
        ("prompt", {"prompt": [USER]}, [USER]),
        ("turns", {"turns": ["q", "q2"]}, [USER, NOT_THERE, LATER]),
        ("llama_nemotron", {"input": [USER], "output": "a", "system_prompt": "detailed thinking on"}, [USER]),
        (
            "llama_nemotron",
            {"input": "q", "output": "a", "system_prompt": "Be brief."},
            [{"role": "system", "content": "Be brief."}, USER],
        ),
        (
            "nemotron",
            {"messages": [{**USER, "tool_calls": []}, {"role": "assistant", "content": "<think>\n</think>\n\na"}]},
            [USER, ANSWER],
        ),
        ("nemotron", {"messages": [USER, {**ANSWER, "reasoning_content": "hm"}], "metadata": "{}"}, [USER, ANSWER]),
        (
            "nemo_gym",
            {"responses_create_params": {"input": [{"role": "developer", "content": "s"}, USER]}},
            [{"role": "system", "content": "s"}, USER],
        ),
        (
            "nemo_gym",
            {"responses_create_params": {"input": "q", "instructions": "s"}},
            [{"role": "system", "content": "s"}, USER],
        ),
        ("bfcl", {"question": [[USER], [LATER]], "function": []}, [USER, NOT_THERE, LATER]),
    ],
)
def test_a_row_gives_its_conversation(row_format: str, row: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    assert read_row(row, row_format) == Conversation(messages)


def test_the_column_of_a_prompt_or_a_conversation_may_be_named() -> None:
    assert read_row({"0": "q", "1": "a"}, "prompt", "0").messages == [USER]
    assert read_row({"chosen": [USER, ANSWER]}, "messages", "chosen").messages == [USER, ANSWER]
    assert read_row({"chat": [{"from": "human", "value": "q"}]}, "sharegpt", "chat").messages == [USER]


def test_typed_parts_become_text_and_reasoning_parts_go() -> None:
    parts = [
        {"type": "reasoning", "value": "hm"},
        {"type": "text", "value": "a"},
        {"type": "tool_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
    ]
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": parts},
        ]
    }
    assert read_row(row, "messages").messages == [USER, {**ANSWER, "tool_calls": [_call("add", '{"x":1}', "call_1_0")]}]


def test_sharegpt_function_calls_and_observations_become_tool_calls_and_their_results() -> None:
    turns = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "a"},
    ]
    tools = json.dumps(
        [{"name": "add", "parameters": {"type": "dict", "properties": {"x": {"type": "float", "default": None}}}}]
    )
    assert read_row({"conversations": turns, "tools": tools}, "sharegpt") == Conversation(
        [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [_call("add", '{"x":1}', "call_1_0")]},
            {"role": "tool", "content": "2", "tool_call_id": "call_1_0"},
            ANSWER,
        ],
        [ADD_TOOL],
    )


def test_items_of_the_responses_form_become_calls_and_results_and_parallel_calls_one_turn() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "name": "add", "arguments": '{"x":1}', "call_id": "one"},
        {"type": "function_call", "name": "add", "arguments": '{"x":2}', "call_id": "two"},
        {"type": "function_call_output", "call_id": "one", "output": "2"},
    ]
    tools = [{"type": "function", "name": "add", "parameters": ADD_TOOL["function"]["parameters"], "strict": True}]
    assert read_row({"responses_create_params": {"input": items, "tools": tools}}, "nemo_gym") == Conversation(
        [
            USER,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [_call("add", '{"x":1}', "one"), _call("add", '{"x":2}', "two")],
            },
            {"role": "tool", "content": "2", "tool_call_id": "one"},
        ],
        [ADD_TOOL],
    )


def test_schemas_with_python_type_names_become_json_schemas() -> None:
    parameters = {
        "type": "dict",
        "properties": {"x": {"type": "float"}, "type": {"type": "tuple", "items": {"type": "any"}}},
    }
    (tool,) = (
        read_row({"question": [[USER]], "function": [{"name": "f", "parameters": parameters}]}, "bfcl").tools or []
    )
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"x": {"type": "number"}, "type": {"type": "array", "items": {"type": "string"}}},
    }


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("row_format", "row", "reason"),
    [
        ("messages", {"text": "q"}, "no_such_column"),
        ("messages", {"messages": None}, "malformed_messages"),
        ("messages", {"messages": "not json"}, "malformed_messages"),
        ("messages", {"messages": ["q"]}, "malformed_messages"),
        ("messages", {"messages": [{"role": "narrator", "content": "q"}]}, "unknown_role"),
        ("messages", {"messages": [{"role": ["user"], "content": "q"}]}, "unknown_role"),
        ("messages", {"messages": [{"content": "q"}]}, "unknown_role"),
        (
            "messages",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "not_text",
        ),
        ("messages", {"messages": [USER], "images": ["1.jpg"]}, "not_text"),
        ("messages", {"messages": [USER], "tools": "{"}, "malformed_tools"),
        ("messages", {"messages": [USER], "tools": [{"type": "function"}]}, "malformed_tools"),
        ("messages", {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "malformed_tool_call"),
        ("messages", {"messages": [USER, {"role": "assistant", "tool_calls": "x"}]}, "malformed_tool_call"),
        ("sharegpt", {"conversations": [{"from": "function_call", "value": "add(1)"}]}, "malformed_tool_call"),
        ("alpaca", {"instruction": None, "input": ""}, "empty_prompt"),
        ("alpaca", {"instruction": "q", "instances": ["x"]}, "malformed_messages"),
        ("alpaca", {"instruction": "q", "history": [7]}, "malformed_messages"),
        ("prompt", {"prompt": 7}, "not_text"),
        ("turns", {"turns": "q"}, "malformed_messages"),
        ("turns", {"turns": ["q", None]}, "malformed_messages"),
        ("nemo_gym", {"responses_create_params": {}}, "malformed_messages"),
        ("bfcl", {"question": [USER], "function": []}, "malformed_messages"),
        (
            "nemotron",
            {"messages": [{"role": "user", "content": None}], "metadata": {"seed_prompt_sha256": "3a"}},
            "prompt_withheld",
        ),
    ],
)
def test_a_row_without_a_conversation_has_a_reason(row_format: str, row: dict[str, Any], reason: str) -> None:
    assert _reason(row, row_format) == reason


_TEXT = st.sampled_from(["q", "", "-", "{}", "[]", '{"name": "f"}'])
_ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["name", "function", "id", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)
_PART = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "tool_call", "reasoning", "image", "?"])}, optional={"text": _ODD, "value": _ODD}
)
_TURN = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool", "?"]) | _ODD,
        "from": st.sampled_from(["human", "gpt", "function_call", "observation"]) | _ODD,
        "content": _TEXT | st.lists(_PART, max_size=2) | _ODD,
        "value": _ODD,
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]) | _ODD,
        "tool_calls": st.lists(
            st.fixed_dictionaries({}, optional={"function": _ODD, "name": _TEXT, "arguments": _ODD}), max_size=2
        )
        | _ODD,
        "call_id": _ODD,
        "output": _ODD,
    },
)
_TURNS = st.lists(_TURN, max_size=4) | _ODD
_ROWS = st.fixed_dictionaries(
    {"messages": _TURNS},
    optional={
        "tools": st.lists(st.fixed_dictionaries({"name": _TEXT}, optional={"parameters": _ODD}), max_size=2) | _ODD,
        "input": _TURNS,
        "system": _ODD,
        "instances": _ODD,
        "history": _ODD,
        "metadata": _ODD,
    },
)


@pytest.mark.hostile
@settings(max_examples=200, deadline=None)
@given(_ROWS)
def test_whatever_a_row_holds_it_is_read_or_has_a_reason(row: dict[str, Any]) -> None:
    said = row["messages"]
    columns = {
        "conversations": said,
        "turns": said,
        "prompt": said,
        "instruction": said,
        "question": [said],
        "function": row.get("tools"),
    }
    row = {
        **row,
        **columns,
        "responses_create_params": {"input": said, "tools": row.get("tools"), "instructions": row.get("system")},
    }
    assert detect(row) is not None
    for row_format in READERS:
        with contextlib.suppress(Unusable):
            conversation = read_row(row, row_format)
            for policy in ("first", "last", "all"):
                with contextlib.suppress(Unusable):
                    found = steps(conversation, policy, keep_system=True, keep_placeholders=False)
                    assert found
                    assert all(step.messages[-1]["role"] in ("user", "tool") for step in found)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ({"responses_create_params": {}, "prompt": "q"}, ("nemo_gym", None)),
        ({"question": [[USER]], "function": []}, ("bfcl", None)),
        ({"input": [USER], "output": "a"}, ("llama_nemotron", None)),
        ({"messages": [USER]}, ("messages", None)),
        ({"messages": [USER], "uuid": "1", "license": "CC BY 4.0"}, ("nemotron", None)),
        ({"conversations": [{"from": "human", "value": "q"}]}, ("sharegpt", None)),
        ({"turns": ["q"]}, ("turns", None)),
        ({"instruction": "q", "input": "", "output": ""}, ("alpaca", None)),
        ({"question": "q", "answer": "a"}, ("prompt", "question")),
        ({"instruction": "q", "response": "a"}, ("prompt", "instruction")),
        ({"text": "a document"}, None),
        ({"content": "a document"}, None),
    ],
)
def test_columns_tell_the_format(row: dict[str, Any], found: tuple[str, str | None] | None) -> None:
    assert detect(row) == found

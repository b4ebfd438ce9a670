"""Which turns are asked, on which history, and which prompts are none."""

from __future__ import annotations

from typing import Any

import pytest

from datagen.formats import Conversation
from datagen.messages import Unusable
from datagen.turns import Step, steps

SYSTEM = {"role": "system", "content": "s"}
U1, U2, U3 = ({"role": "user", "content": f"u{n}"} for n in (1, 2, 3))
A1, A2 = ({"role": "assistant", "content": f"a{n}"} for n in (1, 2))
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "content": "r", "tool_call_id": "c"}
UNKNOWN = {"role": "assistant", "content": None}


def _steps(
    messages: list[dict[str, Any]], policy: str = "first", keep_system: bool = True, keep_placeholders: bool = False
) -> list[Step]:
    return steps(Conversation(messages), policy, keep_system, keep_placeholders)


def _reason(messages: list[dict[str, Any]], policy: str = "first") -> str:
    with pytest.raises(Unusable) as caught:
        _steps(messages, policy)
    return caught.value.reason


def test_first_asks_the_first_user_turn_after_the_system_message() -> None:
    assert _steps([SYSTEM, U1, A1, U2, A2]) == [Step([SYSTEM, U1], None)]
    assert _steps([SYSTEM, A1, U1, A2]) == [Step([SYSTEM, U1], None)]


def test_last_keeps_the_sources_history_and_asks_for_its_last_answer() -> None:
    assert _steps([SYSTEM, U1, A1, U2, A2], "last") == [Step([SYSTEM, U1, A1, U2], None)]
    assert _steps([U1, A1, U2], "last") == [Step([U1, A1, U2], None)]
    assert _steps([U1, CALL, RESULT, A1], "last") == [Step([U1, CALL, RESULT], None)]


def test_all_asks_every_turn_on_the_answer_before_it() -> None:
    assert _steps([SYSTEM, U1, A1, U2, A2, U3], "all") == [Step([SYSTEM, U1], None), Step([U2], 0), Step([U3], 1)]
    assert _steps([U1, UNKNOWN, U2], "all") == [Step([U1], None), Step([U2], 0)]


def test_all_takes_the_sources_own_tool_call_as_history_since_the_result_belongs_to_it() -> None:
    assert _steps([U1, A1, U2, CALL, RESULT, A2, U3], "all") == [
        Step([U1], None),
        Step([U2], 0),
        Step([U2, CALL, RESULT], 0),
        Step([U3], 2),
    ]


def test_system_messages_go_when_empty_and_when_the_source_drops_them() -> None:
    assert _steps([{"role": "system", "content": " "}, U1]) == [Step([U1], None)]
    assert _steps([{"role": "system", "content": None}, U1]) == [Step([U1], None)]
    assert _steps([SYSTEM, U1], keep_system=False) == [Step([U1], None)]


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "empty_prompt"),
        ("", "empty_prompt"),
        (" \n", "empty_prompt"),
        ("-", "placeholder_prompt"),
        ("N/A", "placeholder_prompt"),
        ("{{prompt}}", "placeholder_prompt"),
        ("{instruction}", "placeholder_prompt"),
        ("<PROMPT>", "placeholder_prompt"),
        ("I am {{name}}, made by {{ author }}.", "unfilled_placeholder"),
    ],
)
def test_a_prompt_that_is_empty_or_a_placeholder_is_none(content: str | None, reason: str) -> None:
    assert _reason([{"role": "user", "content": content}]) == reason
    assert _reason([U1, A1, {"role": "user", "content": content}], "all") == reason


@pytest.mark.parametrize(
    "content", ["What does `{{name}}` print?", "```\n{{ name }}\n```", "x = {}", "A set {a} and {b}", "a - b", "<p>"]
)
def test_braces_and_dashes_that_mean_something_are_prompts(content: str) -> None:
    message = {"role": "user", "content": content}
    assert _steps([message]) == [Step([message], None)]


def test_prompts_about_templates_may_keep_their_placeholders() -> None:
    message = {"role": "user", "content": "Greet {{name}} in Jinja"}
    assert _steps([message], keep_placeholders=True) == [Step([message], None)]


def test_a_conversation_without_a_user_or_without_the_history_it_needs_is_not_asked() -> None:
    assert _reason([SYSTEM, A1]) == "no_user_turn"
    assert _reason([], "all") == "no_user_turn"
    assert _reason([U1, UNKNOWN, U2], "last") == "history_unanswered"

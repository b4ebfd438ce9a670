"""From a generation to a row: flags, tool calls, seeds."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.answers import ends_in_loop, make_row, parse_tool_calls, seed_of
from datagen.engines import Generation, Request
from datagen.prompts import PlannedPrompt
from manifests.schema import Sampling
from tests.datagen.small_plans import ByteRenderer

PLANNED = PlannedPrompt("ab" * 16, "a", "chat", [], None, Sampling(), None, None, "ab" * 16, 0)


def row_of(generation: Generation, tools: list | None = None) -> dict:
    planned = PlannedPrompt("ab" * 16, "a", "chat", [], tools, Sampling(), None, None, "ab" * 16, 0)
    return make_row(
        planned, [], Request(planned.id, [1], Sampling(), seed_of(planned.id), "c"), generation, ByteRenderer()
    )


@pytest.mark.parametrize(
    ("token_ids", "loops"),
    [
        ([7] * 32, True),
        ([7] * 31, False),
        ([1, 2, 3] * 12, True),
        (list(range(64)) * 4, True),
        (list(range(65)) * 4, False),
        (list(range(500)) + [5, 6] * 20, True),
        (list(range(500)) + [5, 6] * 20 + [2], True),
        (list(range(500)) + [5, 6] * 20 + [2, 3], False),
        (list(range(20)) * 3, False),
        ([], False),
        ([1], False),
    ],
)
def test_an_end_that_repeats_one_short_pattern_is_a_loop(token_ids: list[int], loops: bool) -> None:
    assert ends_in_loop(token_ids) is loops


@given(st.lists(st.integers(0, 1), max_size=80))
@settings(deadline=None, max_examples=50)
def test_loops_agree_with_the_slow_definition(token_ids: list[int]) -> None:
    def slow(tokens: list[int]) -> bool:
        for period in range(1, 65):
            covered = max(4 * period, 32)
            tail = tokens[len(tokens) - covered :]
            if covered <= len(tokens) and all(tail[at] == tail[at - period] for at in range(period, covered)):
                return True
        return False

    assert ends_in_loop(token_ids) == (slow(token_ids) or slow(token_ids[:-1]))


def test_an_empty_answer_and_cut_thinking_are_flagged_apart() -> None:
    assert row_of(Generation([2], " ", "stop"))["flags"] == ["empty"]
    assert row_of(Generation([9, 8], "", "length", reasoning="so I"))["flags"] == ["unclosed_thinking"]
    assert row_of(Generation([9, 8], "", "stop", reasoning="so I"))["flags"] == ["empty"]
    assert "flags" not in row_of(Generation([9, 8], "fine", "stop"))


def test_tool_calls_written_in_text_become_tool_calls() -> None:
    text = 'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": {"x": 1}}}\n</tool_call>'
    row = row_of(Generation([1, 2], text, "stop"), tools=[{"type": "function"}])
    (call,) = row["tool_calls"]
    assert (call["type"], call["function"]["name"]) == ("function", "look")
    assert orjson.loads(call["function"]["arguments"]) == {"at": {"x": 1}}
    assert row["completion"] == "Let me see."
    assert "tool_calls" not in row_of(Generation([1, 2], text, "stop")), "without tools it is text"


def test_a_broken_tool_call_leaves_the_text_as_it_is() -> None:
    for text in ("<tool_call>{broken}</tool_call>", '<tool_call>{"arguments": {}}</tool_call>', "none"):
        assert parse_tool_calls(text, "ab") == []


def test_a_seed_is_a_hash_of_the_id_in_63_bits() -> None:
    assert seed_of("a") == 0xCA978112CA1BBDCA >> 1
    assert all(0 <= seed_of(str(number)) < 1 << 63 for number in range(100))

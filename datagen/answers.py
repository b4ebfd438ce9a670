"""A generation becomes a row of a shard: reasoning and tool calls separated, oddities flagged, nothing re-tokenised.

Flags are facts about an answer that a person would want counted while the run is young: `empty`, `repetition` (the end
is one pattern over and over) and `unclosed_thinking`. A flagged row is kept; what to do with it is for curation.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Protocol

import orjson

from datagen.engines import Generation, Request
from datagen.prompts import PlannedPrompt

FLAGS = ("empty", "repetition", "unclosed_thinking")

_LONGEST_PATTERN = 64
_LEAST_REPEATS = 4
_LEAST_LOOP_TOKENS = 32
"""A loop is a pattern of up to 64 tokens, at least 4 times and over at least 32 tokens: lists and tables stay below it."""

_TOOL_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
"""How Hermes, Qwen and their relatives write tool calls in text."""


class PromptRenderer(Protocol):
    """What a run needs of `rendering.Renderer`."""

    context_length: int

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, thinking: bool | None
    ) -> list[int]:
        """Return the prompt as token ids; raise ValueError where the template refuses it."""

    def split_reasoning(self, text: str, prompt_token_ids: list[int] | None) -> tuple[str | None, str]:
        """Return (reasoning, completion)."""

    def describe(self) -> dict[str, Any]:
        """Return what `run.json` says of the tokenizer and the template."""


def seed_of(row_id: str) -> int:
    """Return the sampling seed of a row: 63 bits of the hash of its id, whatever worker, order or restart."""
    return int.from_bytes(hashlib.sha256(row_id.encode()).digest()[:8], "big") >> 1


def make_row(
    planned: PlannedPrompt,
    messages: list[dict[str, Any]],
    request: Request,
    generation: Generation,
    renderer: PromptRenderer,
) -> dict[str, Any]:
    """Return the row of a shard, its keys in the order of the format."""
    reasoning, completion = generation.reasoning, generation.text
    if reasoning is None:
        reasoning, completion = renderer.split_reasoning(generation.text, request.prompt_token_ids)
    calls = parse_tool_calls(completion, planned.id) if planned.tools else []
    row: dict[str, Any] = {"id": planned.id, "source": planned.source, "domain": planned.domain, "messages": messages}
    if planned.tools:
        row["tools"] = planned.tools
    row["completion"] = _TOOL_CALL.sub("", completion).strip() if calls else completion
    row["reasoning"] = reasoning
    if calls:
        row["tool_calls"] = calls
    row["prompt_token_ids"] = request.prompt_token_ids
    row["completion_token_ids"] = generation.token_ids
    row["finish_reason"] = generation.finish_reason
    row["sampling"] = request.sampling.model_dump()
    row["seed"] = request.seed
    if planned.thinking is not None:
        row["thinking"] = planned.thinking
    if planned.parent is not None:
        row["parent"] = planned.parent
    flags = find_flags(row, generation)
    if flags:
        row["flags"] = flags
    return row


def find_flags(row: dict[str, Any], generation: Generation) -> list[str]:
    """Return what is odd about an answer, in the order of `FLAGS`."""
    unclosed = row["reasoning"] is not None and not row["completion"] and generation.finish_reason == "length"
    empty = not unclosed and not row["completion"].strip() and not row.get("tool_calls")
    odd = {"empty": empty, "repetition": ends_in_loop(generation.token_ids), "unclosed_thinking": unclosed}
    return [flag for flag in FLAGS if odd[flag]]


def ends_in_loop(token_ids: list[int]) -> bool:
    """Return whether the tokens end in one short pattern over and over, an end token behind it allowed."""
    return any(_loops_at(token_ids, len(token_ids) - behind) for behind in (0, 1))


def parse_tool_calls(text: str, row_id: str) -> list[dict[str, Any]]:
    """Return the tool calls written in an answer, in OpenAI's form; none where one of them is not valid JSON."""
    calls = []
    for number, match in enumerate(_TOOL_CALL.finditer(text)):
        try:
            call = orjson.loads(match.group(1))
        except orjson.JSONDecodeError:
            return []
        if not isinstance(call.get("name"), str):
            return []
        arguments = orjson.dumps(call.get("arguments", {})).decode()
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": f"call_{row_id[:8]}_{number}", "type": "function", "function": function})
    return calls


def _loops_at(token_ids: list[int], end: int) -> bool:
    for period in range(1, min(_LONGEST_PATTERN, end // _LEAST_REPEATS) + 1):
        if token_ids[end - 1] != token_ids[end - 1 - period]:
            continue
        span = max(period * (_LEAST_REPEATS - 1), _LEAST_LOOP_TOKENS - period)
        if span + period <= end and token_ids[end - span : end] == token_ids[end - span - period : end - period]:
            return True
    return False

"""Row formats: where in a row of a published data set the conversation is.

One reader per format takes a row as its file gives it and returns the conversation as OpenAI messages, the answers of
whichever model included: which turns are asked is decided later (`datagen.turns`). An assistant turn that the data does not
hold, but that must have been there (benchmarks list user turns only), is a message whose content is None.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from datagen.messages import Unusable, has_media, normalise, normalise_tools

_PROMPT_COLUMNS = ("prompt", "question", "Question", "query", "problem", "instruction")
"""Columns that `auto` takes for a prompt, best first. `text` and `content` are not among them: those hold documents."""

_MODE_SWITCH = re.compile(r"^\s*detailed thinking (?:on|off)\s*$")
"""The system message by which Llama-Nemotron models switch thinking: it steers the model that answered, and asks nothing."""

_UNANSWERED = {"role": "assistant", "content": None}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a row holds: all of its turns, and the tools that may be called in them."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def read_row(row: dict[str, Any], row_format: str, column: str | None = None) -> Conversation:
    """Return the conversation in a row.

    Args:
        row: as the file gives it.
        row_format: a key of `READERS`.
        column: where the prompt or the conversation is, for the formats that allow it to be elsewhere.

    Raises:
        Unusable: the row holds none; `reason` says why.
    """
    if has_media(row):
        raise Unusable("not_text")
    return READERS[row_format](row, column)


def detect(row: dict[str, Any]) -> tuple[str, str | None] | None:
    """Return the format that a row's columns speak for, and the column where it needs one; None where nothing fits."""
    if isinstance(row.get("responses_create_params"), dict):
        return "nemo_gym", None
    if isinstance(row.get("question"), list) and "function" in row:
        return "bfcl", None
    if isinstance(row.get("input"), list) and "output" in row:
        return "llama_nemotron", None
    if "messages" in row:
        return ("nemotron" if "uuid" in row and "license" in row else "messages"), None
    if isinstance(row.get("conversations"), list):
        return "sharegpt", None
    if isinstance(row.get("turns"), list):
        return "turns", None
    if "instruction" in row and ("input" in row or "instances" in row):
        return "alpaca", None
    found = next((name for name in _PROMPT_COLUMNS if row.get(name)), None)
    return ("prompt", found) if found else None


def _messages(row: dict[str, Any], column: str | None) -> Conversation:
    return Conversation(normalise(_field(row, column or "messages")), normalise_tools(row.get("tools")))


def _sharegpt(row: dict[str, Any], column: str | None) -> Conversation:
    messages = normalise(_field(row, column or "conversations"))
    return Conversation(_with_system(row.get("system"), messages), normalise_tools(row.get("tools")))


def _alpaca(row: dict[str, Any], column: str | None) -> Conversation:
    instruction = _field(row, column or "instruction")
    more = row.get("input")
    if more is None and row.get("instances"):  # self-instruct's seed tasks keep inputs in a list of instances
        more = _objects(row["instances"])[0].get("input")
    if not isinstance(instruction, str):
        raise Unusable("empty_prompt")
    text = f"{instruction}\n\n{more}" if isinstance(more, str) and more.strip() else instruction
    turns = _history(row.get("history") or []) + [{"role": "user", "content": text}]
    return Conversation(_with_system(row.get("system"), normalise(turns)))


def _prompt(row: dict[str, Any], column: str | None) -> Conversation:
    value = _field(row, column or "prompt")
    if isinstance(value, list):  # a prompt that is itself a conversation
        return Conversation(normalise(value), normalise_tools(row.get("tools")))
    if value is not None and not isinstance(value, str):
        raise Unusable("not_text")
    return Conversation([{"role": "user", "content": value}])


def _turns(row: dict[str, Any], column: str | None) -> Conversation:
    turns = _field(row, column or "turns")
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise Unusable("malformed_messages")
    return Conversation(_joined([[{"role": "user", "content": turn}] for turn in turns]))


def _llama_nemotron(row: dict[str, Any], column: str | None) -> Conversation:
    said = _field(row, column or "input")
    turns = [{"role": "user", "content": said}] if isinstance(said, str) else said
    messages = _with_system(row.get("system_prompt"), normalise(turns))
    return Conversation([message for message in messages if not _is_mode_switch(message)])


def _nemotron(row: dict[str, Any], column: str | None) -> Conversation:
    metadata = _metadata(row)
    messages = normalise(_field(row, column or "messages"))
    if metadata.get("seed_prompt_sha256") and any(m["role"] == "user" and m["content"] is None for m in messages):
        raise Unusable("prompt_withheld")  # published as a hash of somebody else's prompt
    tools = row.get("tools") or metadata.get("tools")
    return Conversation([message for message in messages if not _is_mode_switch(message)], normalise_tools(tools))


def _nemo_gym(row: dict[str, Any], column: str | None) -> Conversation:
    request = _field(row, column or "responses_create_params")
    if not isinstance(request, dict):
        raise Unusable("malformed_messages")
    said = request.get("input")
    turns = [{"role": "user", "content": said}] if isinstance(said, str) else said
    return Conversation(
        _with_system(request.get("instructions"), normalise(turns)), normalise_tools(request.get("tools"))
    )


def _bfcl(row: dict[str, Any], column: str | None) -> Conversation:
    question = _field(row, column or "question")
    if not isinstance(question, list) or not all(isinstance(turn, list) for turn in question):
        raise Unusable("malformed_messages")
    return Conversation(_joined([normalise(turn) for turn in question]), normalise_tools(row.get("function")))


READERS: dict[str, Callable[[dict[str, Any], str | None], Conversation]] = {
    "messages": _messages,
    "sharegpt": _sharegpt,
    "alpaca": _alpaca,
    "prompt": _prompt,
    "turns": _turns,
    "llama_nemotron": _llama_nemotron,
    "nemotron": _nemotron,
    "nemo_gym": _nemo_gym,
    "bfcl": _bfcl,
}
"""Reader of each row format of a manifest (`auto` is resolved to one of these)."""


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise Unusable("no_such_column")
    return row[name]


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Unusable("malformed_messages")
    return value


def _history(pairs: Any) -> list[dict[str, Any]]:
    """Return the turns before a prompt, which some Alpaca rows keep as [question, answer] pairs."""
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise Unusable("malformed_messages")
    return [
        {"role": role, "content": said}
        for pair in pairs
        for role, said in zip(("user", "assistant"), pair, strict=True)
    ]


def _joined(turns: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Put the assistant turns that a list of user turns implies between them."""
    messages: list[dict[str, Any]] = []
    for at, turn in enumerate(turns):
        messages += ([dict(_UNANSWERED)] if at else []) + turn
    return messages


def _with_system(text: Any, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put a row's separate system prompt first, unless the conversation brings its own."""
    if not isinstance(text, str) or not text.strip() or (messages and messages[0]["role"] == "system"):
        return messages
    return [{"role": "system", "content": text}, *messages]


def _is_mode_switch(message: dict[str, Any]) -> bool:
    return message["role"] == "system" and bool(_MODE_SWITCH.match(message["content"] or ""))


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    value = row.get("metadata")
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:  # free text; what is sought is not in it
            return {}
    return value if isinstance(value, dict) else {}

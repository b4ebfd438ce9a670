"""Turns of any dialect become OpenAI messages, and tool definitions of any dialect become OpenAI tools.

Published data spells the same conversation in many ways: ShareGPT's `from`/`value`, content as typed parts, tool calls as
text, schemas with Python type names. What comes out is small and uniform, holds only what a chat template reads, and is
free of the marks of whichever model answered before (reasoning of earlier turns, empty fields that a columnar file adds).
"""

from __future__ import annotations

import re
from typing import Any

import orjson

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
"""What data sets call a speaker, and what OpenAI messages call it."""

_TEXT_PARTS = ("text", "input_text", "output_text")
_SILENT_PARTS = ("reasoning", "thinking", "reasoning_text", "summary_text")
"""Parts that a template leaves out of history."""

_MEDIA = ("image", "image_url", "input_image", "audio", "input_audio", "video", "video_url", "file", "input_file")
_MEDIA_COLUMNS = ("images", "image", "videos", "audios")
_THINK_BLOCK = re.compile(r"^\s*(?:<think>)?.*?</think>\s*", re.DOTALL)

_SCHEMA_TYPES = {
    "dict": "object",
    "float": "number",
    "double": "number",
    "tuple": "array",
    "list": "array",
    "int": "integer",
    "long": "integer",
    "str": "string",
    "String": "string",
    "bool": "boolean",
    "any": "string",
}
"""Python's and Java's names in tool schemas (BFCL, Glaive), and JSON Schema's."""


class Unusable(Exception):
    """A row that cannot be asked; `reason` is counted in the plan's report. Caught where rows are read, nowhere else."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def normalise(turns: Any) -> list[dict[str, Any]]:
    """Return OpenAI messages of a list of turns in any dialect of `role`/`content` or `from`/`value`.

    Content is a string, or None for an assistant turn that is nothing but tool calls or is not there to be read. Tool calls
    have string arguments and ids; tool results carry the id of the call they answer, paired in order where the data has none.

    Raises:
        Unusable: not a list of turns, an unknown speaker, or content that is not text.
    """
    if isinstance(turns, str):
        turns = _parse(turns, "malformed_messages")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Unusable("malformed_messages")
    messages: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for turn in turns:
        message = _message(turn)
        if message is None:
            continue
        if message["role"] == "assistant" and message.get("tool_calls"):
            message["tool_calls"] = [_named(call, len(messages), at) for at, call in enumerate(message["tool_calls"])]
            open_calls = [call["id"] for call in message["tool_calls"]]
        if message["role"] == "tool" and "tool_call_id" not in message:
            message["tool_call_id"] = open_calls.pop(0) if open_calls else f"call_{len(messages)}"
        messages.append(message)
    return _merged_calls(messages)


def normalise_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Return OpenAI tool definitions, or None where there are none.

    Raises:
        Unusable: they are not JSON, or not definitions.
    """
    if isinstance(tools, str):
        tools = _parse(tools, "malformed_tools") if tools.strip() else None
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise Unusable("malformed_tools")
    return [_tool(_parse(tool, "malformed_tools") if isinstance(tool, str) else tool) for tool in tools]


def has_media(row: dict[str, Any]) -> bool:
    """Return whether a row brings images, sound or video, which a text target cannot be asked about."""
    return any(row.get(column) for column in _MEDIA_COLUMNS)


def without_thinking(text: str) -> str:
    """Return an assistant's text without a leading `<think>` ... `</think>` block."""
    return _THINK_BLOCK.sub("", text, count=1) if "</think>" in text else text


def _message(turn: dict[str, Any]) -> dict[str, Any] | None:
    """Return one turn as a message, or None for what is no turn (a reasoning item of the Responses form)."""
    kind = turn.get("type")
    if kind == "reasoning":
        return None
    if kind == "function_call":
        return {"role": "assistant", "content": None, "tool_calls": [_call(turn, turn.get("call_id"))]}
    if kind == "function_call_output":
        return {"role": "tool", "content": _text(turn.get("output")) or "", **_call_id(turn.get("call_id"))}
    speaker = turn["role"] if "role" in turn else turn.get("from")
    role = ROLES.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise Unusable("unknown_role")
    content = turn["content"] if "content" in turn else turn.get("value")
    if speaker == "function_call":
        return {"role": role, "content": None, "tool_calls": _calls_in_text(content)}
    if role == "tool":
        return {"role": role, "content": _text(content) or "", **_call_id(turn.get("tool_call_id"))}
    message: dict[str, Any] = {"role": role, "content": _text(content)}
    if role == "assistant":
        calls = [_call(call.get("function") or call, call.get("id")) for call in _calls(turn.get("tool_calls"))]
        calls += [call for part in _parts(content, "tool_call") for call in _calls_in_text(part)]
        if message["content"] is not None:
            message["content"] = without_thinking(message["content"])
        if calls:
            message["tool_calls"] = calls
    return message


def _text(content: Any) -> str | None:
    """Return content as text: typed parts joined, reasoning parts left out."""
    if content is None or isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [text for part in parts if (text := _part_text(part)) is not None]
    return "".join(texts) if texts else None


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in _MEDIA:
        raise Unusable("not_text")
    if kind in _SILENT_PARTS or kind == "tool_call":
        return None
    text = (part.get("text") or part.get("value")) if kind in _TEXT_PARTS else 0
    if text is not None and not isinstance(text, str):
        raise Unusable("malformed_messages")
    return text


def _parts(content: Any, kind: str) -> list[Any]:
    if not isinstance(content, list):
        return []
    return [part.get("value") for part in content if isinstance(part, dict) and part.get("type") == kind]


def _calls(value: Any) -> list[dict[str, Any]]:
    value = _parse(value, "malformed_tool_call") if isinstance(value, str) and value.strip() else value or []
    if not isinstance(value, list) or not all(isinstance(call, dict) for call in value):
        raise Unusable("malformed_tool_call")
    return value


def _calls_in_text(content: Any) -> list[dict[str, Any]]:
    parsed = _parse(content, "malformed_tool_call") if isinstance(content, str) else content
    calls = parsed if isinstance(parsed, list) else [parsed]
    return [_call(call, None) for call in calls]


def _call(function: Any, call_id: Any) -> dict[str, Any]:
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable("malformed_tool_call")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = orjson.dumps(without_nulls(arguments or {})).decode()
    call = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": call_id, **call} if isinstance(call_id, str) and call_id else call


def _named(call: dict[str, Any], message: int, at: int) -> dict[str, Any]:
    return call if "id" in call else {"id": f"call_{message}_{at}", **call}


def _call_id(value: Any) -> dict[str, str]:
    return {"tool_call_id": value} if isinstance(value, str) and value else {}


def _merged_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join parallel calls that the data spells as assistant turns in a row: a template expects them in one turn."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        last = merged[-1] if merged else None
        if (
            last
            and last["role"] == message["role"] == "assistant"
            and last.get("tool_calls")
            and message.get("tool_calls")
        ):
            last["tool_calls"] = last["tool_calls"] + message["tool_calls"]
        else:
            merged.append(message)
    return merged


def _tool(tool: Any) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) and isinstance(tool.get("function"), dict) else tool
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Unusable("malformed_tools")
    kept = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
    if isinstance(kept.get("parameters"), str):
        kept["parameters"] = _parse(kept["parameters"], "malformed_tools")
    if "parameters" in kept:
        kept["parameters"] = _schema(kept["parameters"])
    return {"type": "function", "function": kept}


def _schema(value: Any) -> Any:
    """Return a JSON Schema with JSON Schema's type names and without the nulls that columnar files pad with."""
    if isinstance(value, list):
        return [_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {key: _schema(item) for key, item in value.items() if item is not None}
    if isinstance(result.get("type"), str):
        result["type"] = _SCHEMA_TYPES.get(result["type"], result["type"])
    return result


def without_nulls(value: Any) -> Any:
    """Return a value without the null fields of its objects, which columnar files add."""
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _parse(text: Any, reason: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Unusable(reason) from error

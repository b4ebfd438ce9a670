"""What a row of an evaluation file asks: its chat up to the first question, later turns, and tools.

A layout is known by its fields: MT-bench and Spec-Bench (`turns`), HumanEval (`prompt`), GSM8K (`question`), MBPP (`text`), MATH
(`problem`), Alpaca (`instruction` with `input`), self-instruct (`instances`), chats (`messages`, `conversations`), BFCL (turns of messages, `function`),
requests to the responses API (`responses_create_params`) and preference pairs (`chosen_messages`, `chosen`). What cannot be asked of a
text model is refused rather than asked in part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

QUESTION_FIELDS = ("turns", "messages", "conversations", "prompt", "instruction", "question", "problem", "text")
"""Where a row may hold what is asked, in the order in which they are tried."""

CHAT_FIELDS = ("input", "chosen_messages", "chosen")
"""Where else a row may hold a chat: requests, and pairs of preferred and rejected answers."""

MEDIA_FIELDS = ("images", "image", "videos", "audios")

THOUGHT_PARTS = ("reasoning", "thinking")
"""Parts of a message that hold what an assistant thought, which no template gives back to a target."""

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "function_call": "assistant",
    "observation": "tool",
}
"""Names that chats in ShareGPT's layout give to those who speak."""


@dataclass(frozen=True)
class Question:
    """What a row asks."""

    messages: tuple[dict[str, Any], ...]
    """Up to the first question, which the target answers."""
    later_turns: tuple[str, ...] = ()
    """What the user says after that."""
    tools: tuple[dict[str, Any], ...] = ()
    """As OpenAI's chat API has them."""


def read_question(row: dict[str, Any]) -> Question | None:
    """Return what a row asks, None where it asks nothing.

    Raises:
        ValueError: it asks about images or sounds, or its tools are not JSON; says which.
    """
    if found := [name for name in MEDIA_FIELDS if row.get(name)]:
        raise ValueError(f"asks about {found[0]}, which a text model cannot see; leave such rows out")
    request = row.get("responses_create_params")
    if isinstance(request, dict):
        row = {"messages": request.get("input"), "tools": request.get("tools"), "system": request.get("instructions")}
    asked = _asked(row)
    if not asked or not asked[0]:
        return None
    messages, later = asked
    system = row.get("system") or row.get("system_prompt")
    if isinstance(system, str) and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return Question(tuple(messages), tuple(later), _tools(row.get("tools") or row.get("function")))


def _asked(row: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]] | None:
    for field in QUESTION_FIELDS:
        value = row.get(field)
        if isinstance(value, str) and value.strip():
            extra = _input_of(row) if field == "instruction" else None
            return [{"role": "user", "content": f"{value}\n{extra}" if extra else value}], []
        if isinstance(value, list) and value:
            return _from_turns(value) if all(isinstance(one, str) for one in value) else _from_messages(value)
    value = next((row[field] for field in CHAT_FIELDS if isinstance(row.get(field), list) and row[field]), None)
    return None if value is None else _from_messages(value)


def _input_of(row: dict[str, Any]) -> Any:
    instances = row.get("instances")
    if isinstance(instances, list) and instances and isinstance(instances[0], dict):
        return instances[0].get("input")
    return row.get("input")


def _from_turns(turns: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    return [{"role": "user", "content": turns[0]}], turns[1:]


def _from_messages(found: list[Any]) -> tuple[list[dict[str, Any]], list[str]] | None:
    """A chat that ends with the user is asked as it stands; one with answers is asked from its first turn on, because
    the replies are the target's to give."""
    if all(isinstance(turn, list) for turn in found):  # BFCL: a list of turns, each a list of messages
        found = [message for turn in found for message in turn]
    if not found or not all(isinstance(message, dict) for message in found):
        return None
    messages = [_message(message) for message in found]
    if messages[-1]["role"] in ("user", "tool"):
        return messages, []
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return None
    later = [message["content"] for message in messages[first + 1 :] if message["role"] == "user"]
    return messages[: first + 1], later


def _message(found: dict[str, Any]) -> dict[str, Any]:
    role = str(found.get("role") or found.get("from") or "user")
    message = {"role": ROLES.get(role, role), "content": _text(found.get("content", found.get("value")))}
    return message | {name: found[name] for name in ("tool_calls", "tool_call_id", "name") if found.get(name)}


def _text(content: Any) -> str:
    """Return the text of a message whose content is a text or a list of parts."""
    if isinstance(content, list):
        parts = [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in content]
        parts = [part for part in parts if part.get("type") not in THOUGHT_PARTS]
        other = [part.get("type") for part in parts if part.get("type") not in ("text", "input_text", None)]
        if other:
            raise ValueError(f"holds a part of type {other[0]!r}, which a text model cannot read; leave such rows out")
        return "".join(str(part.get("text") or part.get("value") or "") for part in parts)
    return content if isinstance(content, str) else "" if content is None else orjson.dumps(content).decode()


def _tools(found: Any) -> tuple[dict[str, Any], ...]:
    """Return tools as templates expect them, from OpenAI's two layouts, BFCL's functions, or JSON of any of them."""
    if isinstance(found, str):
        try:
            found = orjson.loads(found)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"holds tools that are not JSON ({error})") from error
    if isinstance(found, dict):
        found = [found]
    if not isinstance(found, list):
        return ()
    tools = []
    for tool in found:
        if not isinstance(tool, dict):
            raise ValueError(f"holds a tool that is {type(tool).__name__}, no object")
        function = tool["function"] if isinstance(tool.get("function"), dict) else tool
        kept = {name: value for name, value in function.items() if name not in ("type", "strict")}
        tools.append({"type": "function", "function": _json_schema(kept)})
    return tuple(tools)


def _json_schema(value: Any) -> Any:
    """Return a value with BFCL's Python type names as JSON Schema has them."""
    names = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
    if isinstance(value, dict):
        return {
            name: names.get(one, one) if name == "type" and isinstance(one, str) else _json_schema(one)
            for name, one in value.items()
        }
    return [_json_schema(one) for one in value] if isinstance(value, list) else value

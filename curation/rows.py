"""Rows: what a JSON object says, in the one shape that curation works with.

Our own shards (and most regenerated ones) have `messages` and `completion`. Other shapes that carry a prompt and an answer are
brought into it: messages whose last turn is the assistant's, ShareGPT `conversations`, instruction/input/output,
prompt/completion and its cousins, and Llama-Nemotron's input/output. Text is taken as it is; only its place changes.
An object without a prompt or without an answer is not a completion, and the reason says which.
"""

from __future__ import annotations

import json
from typing import Any

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
"""Role names seen in public data, and the OpenAI role that each means."""

PROMPT_KEYS = ("prompt", "question", "query", "instruction", "problem", "text", "Question", "Problem")
ANSWER_KEYS = (
    "completion",
    "response",
    "output",
    "answer",
    "answers",
    "solution",
    "canonical_solution",
    "code",
    "Answer",
    "Solution",
)
"""Columns of flat rows, in the order in which they are looked for."""

_UNANSWERED_KEYS = ("turns", "responses_create_params", "question")
"""Columns that hold prompts in data sets of prompts alone."""

_KEPT_AS_IS = ("tools", "finish_reason", "sampling", "seed", "license", "thinking")


class NotACompletion(ValueError):
    """The object holds no prompt with an answer. Its text is the counted reason."""


def normalise(value: dict[str, Any]) -> dict[str, Any]:
    """Return the row that `value` holds.

    Returns:
        dict with `messages` (list of {role, content: str, ...}, the prompt), `completion` (str), `reasoning` (str or None),
        `tool_calls` (list or None), `id` (str or None), `source` (str or None), `domain` (str or None),
        `prompt_token_ids` and `completion_token_ids` (list[int] or None), `finish_reason`, and `tools` where there are any.

    Raises:
        NotACompletion: with a snake_case reason.
    """
    if "completion" in value and isinstance(value.get("messages"), list):
        messages = [_message(message) for message in value["messages"]]
        answer: dict[str, Any] = {"content": _text(value["completion"], "completion_not_text"), **_thinking_of(value)}
    else:
        messages, answer = _foreign(value)
    if not any(message["role"] in ("user", "tool") for message in messages):
        raise NotACompletion("no_user_turn")
    row: dict[str, Any] = {
        "id": _string(value, "id", "uuid", "conversation_id", "question_id", "task_id"),
        "source": _string(value, "source", "dataset"),
        "domain": _string(value, "domain"),
        "messages": messages,
        "completion": answer["content"],
        "reasoning": answer.get("reasoning"),
        "tool_calls": answer.get("tool_calls"),
        "prompt_token_ids": _ids(value.get("prompt_token_ids")),
        "completion_token_ids": _ids(value.get("completion_token_ids")),
    }
    for key in _KEPT_AS_IS:
        if value.get(key) is not None:
            row[key] = value[key]
    row["finish_reason"] = _string(value, "finish_reason")
    row["license"] = _string(value, "license")
    return row


def prompt_text(row: dict[str, Any]) -> str:
    """Return the text that deduplication compares: system and user turns joined by newlines."""
    return "\n".join(message["content"] for message in row["messages"] if message["role"] in ("system", "user"))


def _foreign(value: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return prompt messages and the answering message of a row in someone else's shape."""
    for key in ("messages", "conversations", "conversation", "chosen_messages", "chosen"):
        turns = value.get(key)
        if isinstance(turns, list) and turns:
            return _split_conversation(turns, value)
    turns = value.get("input")
    if isinstance(turns, list) and turns and isinstance(turns[0], dict) and "role" in turns[0]:  # Llama-Nemotron
        messages = [_message(message) for message in turns]
        return _with_system(messages, value.get("system_prompt")), _flat_answer(value)
    return _flat_prompt(value), _flat_answer(value)


def _split_conversation(turns: list[Any], value: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the turns before the last answer, and that answer, which may be beside the conversation."""
    messages = _with_system([_message(turn) for turn in turns], value.get("system"))
    if messages[-1]["role"] != "assistant" and any(isinstance(value.get(key), str) for key in ANSWER_KEYS):
        return messages, _flat_answer(value)
    while messages and messages[-1]["role"] != "assistant":  # a trailing question nobody answered
        messages.pop()
    if len(messages) < 2:
        raise NotACompletion("no_completion")
    return messages[:-1], messages[-1]


def _flat_prompt(value: dict[str, Any]) -> list[dict[str, Any]]:
    for key in PROMPT_KEYS:
        prompt = value.get(key)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            return [_message(message) for message in prompt]
        if isinstance(prompt, str):
            extra = value.get("input")
            text = f"{prompt}\n{extra}" if key == "instruction" and isinstance(extra, str) and extra else prompt
            return _with_system([{"role": "user", "content": text}], value.get("system"))
    raise NotACompletion("no_completion" if any(key in value for key in _UNANSWERED_KEYS) else "no_prompt")


def _flat_answer(value: dict[str, Any]) -> dict[str, Any]:
    for key in ANSWER_KEYS:
        answer = value.get(key)
        if isinstance(answer, (str, int, float)):
            return {"content": str(answer), **_thinking_of(value)}
        if isinstance(answer, list) and answer and isinstance(answer[-1], dict) and "content" in answer[-1]:
            return _message(answer[-1])
        if isinstance(answer, list) and answer:
            return {"content": json.dumps(answer, ensure_ascii=False), **_thinking_of(value)}
    examples = value.get("instances")  # Self-Instruct's seed tasks
    if isinstance(examples, list) and examples and isinstance(examples[0], dict):
        return _flat_answer({"output": examples[0].get("output")})
    raise NotACompletion("no_completion")


def _with_system(messages: list[dict[str, Any]], system: Any) -> list[dict[str, Any]]:
    if isinstance(system, str) and system.strip():
        return [{"role": "system", "content": system}, *messages]
    return messages


def _message(turn: Any) -> dict[str, Any]:
    """Return one turn as {role, content, and what else a template may need}."""
    if not isinstance(turn, dict):
        raise NotACompletion("bad_messages")
    role = ROLES.get(str(turn.get("role") or turn.get("from") or "").lower())
    if role is None:
        raise NotACompletion("unknown_role")
    content = turn["content"] if "content" in turn else turn.get("value")
    message: dict[str, Any] = {"role": role, "content": _text(content, "bad_messages")}
    message.update(_thinking_of(turn))
    reasoning = _parts_of(content, "reasoning") or _parts_of(content, "thinking")
    if reasoning and "reasoning" not in message:
        message["reasoning"] = reasoning
    for key in ("tool_call_id", "name"):
        if isinstance(turn.get(key), str):
            message[key] = turn[key]
    return message


def _thinking_of(turn: dict[str, Any]) -> dict[str, Any]:
    """Return `reasoning` and `tool_calls` of a turn or a row, where it has them."""
    found: dict[str, Any] = {}
    for key in ("reasoning", "reasoning_content"):
        if isinstance(turn.get(key), str) and turn[key] not in ("on", "off"):  # Nemotron's switch of the same name
            found["reasoning"] = turn[key]
            break
    calls = turn.get("tool_calls")
    if isinstance(calls, list) and calls:
        found["tool_calls"] = calls
    return found


def _text(content: Any, reason: str) -> str:
    """Return the text of a content field: a string, null, or a list of typed parts."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [_part_text(part, reason) for part in content]
        return "\n".join(part for part in parts if part)
    raise NotACompletion(reason)


def _part_text(part: Any, reason: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise NotACompletion(reason)
    if part.get("type") in ("reasoning", "thinking"):
        return ""
    for key in ("text", "content", "value"):
        if isinstance(part.get(key), str):
            return part[key]
    return ""  # an image or another part without text


def _parts_of(content: Any, kind: str) -> str:
    """Return the text of typed parts of one kind."""
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") or part.get("value") or part.get(kind) for part in content if _is_part(part, kind)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _is_part(part: Any, kind: str) -> bool:
    return isinstance(part, dict) and part.get("type") == kind


def _string(value: dict[str, Any], *keys: str) -> str | None:
    """Return the first of `keys` that holds a string or a whole number."""
    for key in keys:
        found = value.get(key)
        if isinstance(found, str):
            return found
        if isinstance(found, int) and not isinstance(found, bool):
            return str(found)
    return None


def _ids(value: Any) -> list[int] | None:
    """Return token ids, or None where there are none that could be used."""
    if isinstance(value, list) and value and type(value[0]) is int and type(value[-1]) is int:
        return value
    return None

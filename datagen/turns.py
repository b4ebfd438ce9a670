"""Which turns of a conversation are asked, and which conversations cannot be.

`first` asks the first user turn. `last` keeps the source's history and asks for the last answer. `all` asks for every
assistant turn, each a row, on the target's own earlier answers. Where an earlier turn called a tool, the source's own call and
its result are the history instead: a result belongs to the call that produced it, and the target may have called another way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from datagen.formats import Conversation
from datagen.messages import Unusable

_PLACEHOLDERS = frozenset(
    {"-", "--", ".", "...", "n/a", "na", "none", "null", "nan", "[removed]", "[deleted]", "[redacted]"}
)
"""What data sets put where a prompt was withheld or lost, in lower case."""

_WHOLE_PLACEHOLDER = re.compile(r"^\s*(?:\{\{?\s*[A-Za-z_]\w*\s*\}\}?|<[A-Z_]{3,}>)\s*$")
_UNFILLED = re.compile(r"\{\{\s*[A-Za-z_]\w*\s*\}\}")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """One generation of a conversation."""

    messages: list[dict[str, Any]]
    """What is said since the parent's answer; the whole prompt where there is no parent."""
    parent: int | None
    """Index of the step whose answer comes before; None where the prompt stands alone."""


def steps(conversation: Conversation, policy: str, keep_system: bool, keep_placeholders: bool) -> list[Step]:
    """Return the generations that a turn policy asks of a conversation, in order; parents come before children.

    Args:
        conversation: all turns of a row.
        policy: `first`, `last` or `all`.
        keep_system: whether system messages are kept; empty ones never are.
        keep_placeholders: whether `{{name}}` in a prompt is text (as in questions about templates) and no missing value.

    Raises:
        Unusable: there is nothing to ask, or what would be asked is empty or a placeholder.
    """
    messages = [
        m for m in conversation.messages if m["role"] != "system" or (keep_system and (m["content"] or "").strip())
    ]
    if not any(message["role"] == "user" for message in messages):
        raise Unusable("no_user_turn")
    found = {"first": _first, "last": _last, "all": _all}[policy](messages)
    for step in found:
        for message in step.messages:
            _check(message, keep_placeholders)
    return found


def _first(messages: list[dict[str, Any]]) -> list[Step]:
    asked = next(at for at, message in enumerate(messages) if message["role"] == "user")
    if any(message["role"] != "system" for message in messages[:asked]):
        messages = [m for m in messages[:asked] if m["role"] == "system"] + messages[
            asked:
        ]  # an opening assistant turn
        asked = next(at for at, message in enumerate(messages) if message["role"] == "user")
    return [Step(messages[: asked + 1], None)]


def _last(messages: list[dict[str, Any]]) -> list[Step]:
    while messages and messages[-1]["role"] in ("assistant", "system"):
        messages = messages[:-1]
    if not messages:
        raise Unusable("no_user_turn")
    return [Step(messages, None)]


def _all(messages: list[dict[str, Any]]) -> list[Step]:
    found: list[Step] = []
    parent: int | None = None
    since: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "assistant":
            since = [*since, message]
        elif since and since[-1]["role"] in ("user", "tool"):
            found.append(Step(since, parent))
            if message.get("tool_calls"):
                since = [*since, message]
            else:
                parent, since = len(found) - 1, []
    if since and since[-1]["role"] in ("user", "tool"):
        found.append(Step(since, parent))
    if not found:
        raise Unusable("no_user_turn")
    return found


def _check(message: dict[str, Any], keep_placeholders: bool) -> None:
    content = message["content"]
    if message["role"] == "assistant":
        if content is None and not message.get("tool_calls"):
            raise Unusable("history_unanswered")
        return
    if message["role"] == "tool":
        return
    if content is None or not content.strip():
        raise Unusable("empty_prompt")
    if message["role"] == "user" and (content.strip().lower() in _PLACEHOLDERS or _WHOLE_PLACEHOLDER.match(content)):
        raise Unusable("placeholder_prompt")
    if not keep_placeholders and _UNFILLED.search(_CODE.sub("", content)):
        raise Unusable("unfilled_placeholder")

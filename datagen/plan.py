"""The plan: a manifest expanded once into an immutable, ordered list of prompts.

Selection is by hash rank, so it does not depend on file order and it is nested: raising a share or adding a source keeps
every prompt that was already chosen, and its place, and only appends. Growing a data set never repeats paid work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from manifests.schema import Sampling


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One generation to make: a row of the plan, and later a row of a shard."""

    id: str
    """Content hash of (source, prompt, turn policy, rollout): 32 hexadecimal digits."""
    source: str
    domain: str
    messages: list[dict[str, Any]]
    """OpenAI messages that this row adds: the whole prompt, or, after `parent`, the turns since its answer."""
    tools: list[dict[str, Any]] | None
    """Tool definitions for the chat template."""
    sampling: Sampling
    """Resolved: the manifest's sampling with the source's overrides."""
    thinking: bool | None
    """Thinking on or off for this row; None leaves it to the target's `chat_template_kwargs`."""
    parent: str | None
    """Id of the row whose answer precedes `messages` (turn policy `all`); None for a first turn."""
    conversation: str
    """Key that the turns of one conversation share; equals `id` of its first row."""
    rollout: int
    """0-based generation number for the same prompt."""

"""A planned prompt: one generation to make, named by its content.

The name is a hash of what is asked and of nothing else (not of its place in a file, the seed, or the size of the mix), so the
same prompt has the same id in every plan, on every machine, and paid work is recognised wherever it turns up.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import orjson

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


def row_id(source: str, policy: str, payload: bytes, rollout: int, step: int) -> str:
    """Return the id of step `step` of a conversation whose canonical bytes are `payload`."""
    digest = blake2b(digest_size=16)
    digest.update(orjson.dumps([source, policy, rollout, step]))
    digest.update(payload)
    return digest.hexdigest()


def encode(prompt: PlannedPrompt) -> bytes:
    """Return a row of the plan as one line of JSON."""
    row = {name: getattr(prompt, name) for name in PlannedPrompt.__slots__}
    return orjson.dumps({**row, "sampling": prompt.sampling.model_dump(mode="json")}) + b"\n"


def decode(line: bytes) -> PlannedPrompt:
    """Return the row that `encode` wrote."""
    row = orjson.loads(line)
    row["sampling"] = Sampling.model_validate(row["sampling"])
    return PlannedPrompt(**row)

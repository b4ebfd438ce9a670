"""How long a prompt may be, in the target's tokens: its context less what the answer may take, or the source's own limit.

Counting tokens costs a millisecond and more, and nearly all prompts are far from the limit. No tokenizer makes more tokens than
a text has bytes, so a prompt whose bytes fit is not counted. Later turns of a conversation are checked when their history exists.
"""

from __future__ import annotations

from typing import Any

from datagen.rendering import Renderer
from manifests.schema import Sampling, Source

_TEMPLATE_SLACK_TOKENS = 1024
"""What a chat template may add to a prompt beyond what it adds to a bare one, e.g. instructions for calling tools."""


class PromptLimit:
    """Measures prompts against a target's context."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._bare_tokens = len(renderer.render([{"role": "user", "content": "-"}]))

    def longest_prompt(self, source: Source, sampling: Sampling) -> int:
        """Return the tokens that a source's prompts may have.

        Raises:
            ValueError: the answers alone fill the context.
        """
        room = self.renderer.context_length - sampling.max_tokens
        if room <= self._bare_tokens:
            raise ValueError(
                f"source {source.name!r}: `max_tokens` {sampling.max_tokens} leaves no room for a prompt in the target's context of "
                f"{self.renderer.context_length} tokens; lower it, or raise `target.max_model_len`"
            )
        return min(room, source.filters.max_prompt_tokens or room)

    def exceeded(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        payload: bytes,
        longest: int,
        thinking: bool | None,
    ) -> str | None:
        """Return why a prompt cannot be asked (`over_context`, `template_refused`), or None where it can.

        Args:
            messages: the first prompt of a conversation.
            tools: its tool definitions.
            payload: all of it as JSON; bounds the number of tokens.
            longest: from `longest_prompt`.
            thinking: as it will be asked.
        """
        if len(payload) + self._bare_tokens + _TEMPLATE_SLACK_TOKENS <= longest:
            return None
        try:
            return "over_context" if len(self.renderer.render(messages, tools, thinking)) > longest else None
        except ValueError:
            return "template_refused"

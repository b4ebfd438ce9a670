"""What may propose tokens while a target decodes: a DFlash drafter, or the text so far.

A proposer follows one text at a time. Decoding tells it which tokens became part of the text (with the target's features of
each), asks it what may follow the newest one, and never lets it decide: whatever it proposes, the text is the target's own.

Letters: N new tokens, K slots of a block, S proposed slots, V vocabulary, H width, F = features x width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from training.drafter import ContextCache, DFlashDrafter
from training.target import Target


class Proposer(Protocol):
    """Follows a text and proposes how it goes on."""

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """Target layers whose outputs it wants to see, 0-based."""

    def begin(self) -> None:
        """Forget the text; another one begins."""

    def read(self, token_ids: list[int], features_NF: Tensor) -> None:
        """Take in the next N tokens of the text, which the target has read, and their features."""

    def propose(self, anchor_id: int) -> Tensor:
        """Return float32 logits [S, V] of the tokens after the anchor, the newest token, which the target has not read yet.

        S may differ from round to round, and be 0.
        """


class DFlashProposer:
    """A drafter with its key-value cache. Embedding and lm_head are the target's."""

    def __init__(self, target: Target, drafter: DFlashDrafter) -> None:
        self.target, self.drafter = target, drafter
        self.context = drafter.empty_cache()

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return self.drafter.config.target_layer_ids

    def begin(self) -> None:
        self.context = self.drafter.empty_cache()

    @torch.no_grad()
    def read(self, token_ids: list[int], features_NF: Tensor) -> None:
        self.drafter.extend(self.context, features_NF.to(self.drafter.fc.weight.dtype))

    def propose(self, anchor_id: int) -> Tensor:
        return draft_logits(self.target, self.drafter, self.context, anchor_id)


class PromptLookup:
    """Proposes what followed the newest n-gram when it last occurred in the text (prompt lookup, github.com/apoorvumang).

    The baseline that costs nothing: it earns its tokens where answers quote their prompts, as edits of code do.
    """

    layer_ids: tuple[int, ...] = ()

    def __init__(
        self, vocab_size: int, num_proposals: int, longest: int = 3, device: torch.device | str = "cpu"
    ) -> None:
        self.vocab_size, self.num_proposals, self.longest, self.device = vocab_size, num_proposals, longest, device
        self.text: list[int] = []

    def begin(self) -> None:
        self.text = []

    def read(self, token_ids: list[int], features_NF: Tensor) -> None:
        self.text += token_ids

    def propose(self, anchor_id: int) -> Tensor:
        following = torch.tensor(self._following([*self.text, anchor_id]), dtype=torch.int64, device=self.device)
        logits_SV = torch.full((len(following), self.vocab_size), -torch.inf, device=self.device)
        return logits_SV.scatter_(1, following[:, None], 0.0)

    def _following(self, text: list[int]) -> list[int]:
        for length in range(min(self.longest, len(text) - 1), 0, -1):
            newest = text[-length:]
            for start in range(len(text) - length - 1, -1, -1):
                if text[start : start + length] == newest:
                    return text[start + length : start + length + self.num_proposals]
        return []


def draft_logits(target: Target, drafter: DFlashDrafter, context: ContextCache, anchor_id: int) -> Tensor:
    """Return float32 logits [S, V] of the block anchored at the token after the context."""
    config = drafter.config
    ids_K = torch.full((config.block_size,), config.mask_token_id, device=target.device)
    ids_K[0] = anchor_id
    with torch.no_grad():
        hidden_KH = drafter.draft(context, target.embed(ids_K))
    return target.logits(hidden_KH[1:]).float()

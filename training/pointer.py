"""Tau on held-out documents as decoding would have it, without decoding.

A document is text that the target itself wrote, so the target would accept exactly the proposals that agree with it. The
walk starts at the first token that the target wrote and goes p <- p + streak(p) + 1: each round begins where the last one
ended, right after a rejection, where drafting is hardest. Uniformly drawn anchors know nothing of that and flatter. For greedy
data this is the tau of greedy decoding on the same prompts; for sampled data, that of following the sample.

Letters: T packed tokens, A documents still walking, K slots, S = K - 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from training.batches import Batch
from training.blocks import block_labels, block_token_ids, eligible_anchors, lay_out_blocks
from training.drafter import DFlashDrafter
from training.features import FeatureSource


@dataclass(frozen=True)
class Walk:
    """One document's walk."""

    row_id: str
    domain: str
    tokens: int
    """Tokens gained, the bonus token of every round included."""
    rounds: int
    """Target forward passes that gained them."""


def tau(walks: Iterable[Walk]) -> float:
    """Return tokens per round over all walks; 0 where there was no round."""
    walks = list(walks)
    return sum(walk.tokens for walk in walks) / max(1, sum(walk.rounds for walk in walks))


def tau_by_domain(walks: Iterable[Walk]) -> dict[str, float]:
    """Return tokens per round of every domain, in order of name."""
    walks = list(walks)
    return {domain: tau(w for w in walks if w.domain == domain) for domain in sorted({w.domain for w in walks})}


@torch.no_grad()
def pointer_walk(
    target: FeatureSource, drafter: DFlashDrafter, batches: Iterable[Batch], max_rounds: int = 256
) -> list[Walk]:
    """Return a walk per document of held-out micro-batches. Each document takes at most `max_rounds` rounds; those of one
    micro-batch walk side by side, on features and context keys that are computed once."""
    walks: list[Walk] = []
    for batch in batches:
        features = target.features(batch, drafter.config.target_layer_ids)
        tokens, rounds = _walk(target, drafter, batch, features.hidden_TF, max_rounds)
        walks += [
            Walk(row_id, domain, tokens[number], rounds[number])
            for number, (row_id, domain) in enumerate(zip(batch.row_ids, batch.domains, strict=True))
        ]
    return walks


def _walk(
    target: FeatureSource, drafter: DFlashDrafter, batch: Batch, hidden_TF: Tensor, max_rounds: int
) -> tuple[list[int], list[int]]:
    """Return tokens gained and rounds taken, by document number."""
    config, num_documents = drafter.config, len(batch.row_ids)
    context = drafter.project_context(hidden_TF.to(drafter.fc.weight.dtype), batch.position_T)
    supervised_T = torch.nn.functional.pad(batch.loss_mask_T & (batch.document_T >= 0), (0, 1))
    eligible = torch.nonzero(eligible_anchors(batch)).squeeze(1)
    tokens = torch.zeros(num_documents, dtype=torch.int64, device=hidden_TF.device)
    rounds = torch.zeros_like(tokens)
    document_A = torch.arange(num_documents, device=hidden_TF.device)
    pointer_A = torch.searchsorted(batch.document_T.masked_fill(batch.document_T < 0, num_documents), document_A)
    for _ in range(max_rounds):
        pointer_A, document_A = _next_anchors(batch, eligible, pointer_A, document_A)
        if pointer_A.numel() == 0:
            break
        layout = lay_out_blocks(batch, pointer_A, torch.ones_like(pointer_A, dtype=torch.bool), config.block_size)
        embeds_AKH = target.embed(block_token_ids(batch, layout, config.mask_token_id))
        hidden_AKH = drafter.fill_blocks(context, embeds_AKH, layout)
        labels_AS, label_mask_AS = block_labels(batch, layout)
        right_AS = (target.logits(hidden_AKH[:, 1:]).argmax(dim=-1) == labels_AS) & label_mask_AS
        streak_A = right_AS.long().cumprod(dim=1).sum(dim=1)
        pointer_A = pointer_A + streak_A + 1
        tokens[document_A] += streak_A + supervised_T[pointer_A]
        rounds[document_A] += 1
    return tokens.tolist(), rounds.tolist()


def _next_anchors(batch: Batch, eligible: Tensor, pointer_A: Tensor, document_A: Tensor) -> tuple[Tensor, Tensor]:
    """Move every pointer to the next eligible position of its document; documents that have none drop out."""
    place_A = torch.searchsorted(eligible, pointer_A)
    found_A = place_A < eligible.numel()
    pointer_A, document_A = eligible[place_A[found_A]], document_A[found_A]
    same_A = batch.document_T[pointer_A] == document_A
    return pointer_A[same_A], document_A[same_A]

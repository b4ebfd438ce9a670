"""Rounds of decoding along a text that is known: what a proposer would earn, without asking the target again.

At temperature 0 a text does not depend on who helps to decode it, so one pass of the target over prompt and text gives the
features of every round of every proposer. Proposers are then compared on the very same tensors, at the cost of drafting
alone. Along a text that was sampled, a proposal counts when it is the sampled token.

Letters: N tokens of prompt and text but the last, F = features x width, S proposed slots.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.acceptance import PromptRounds
from training.decode import grow_tree, walk_tree
from training.proposers import Proposer
from training.target import Target


def text_features(
    target: Target, prompt_ids: list[int], text_ids: list[int], layer_ids: tuple[int, ...]
) -> dict[int, Tensor]:
    """Return the outputs [N, H] of the target's layers along prompt and text, by layer."""
    ids_N = torch.tensor([*prompt_ids, *text_ids[:-1]], device=target.device)
    features_NF = target.extend(target.open_cache(), ids_N, layer_ids).features_NF
    return dict(zip(layer_ids, features_NF.chunk(max(1, len(layer_ids)), dim=-1), strict=False))


def replay(
    proposer: Proposer,
    prompt_ids: list[int],
    text_ids: list[int],
    features: dict[int, Tensor],
    tree_nodes: int | None = None,
) -> PromptRounds:
    """Return the rounds that decoding the text with a proposer takes: those of `decode_drafted` at temperature 0."""
    proposer.begin()
    ids = [*prompt_ids, *text_ids]
    last, anchor, read = len(ids) - 1, len(prompt_ids), 0
    features_NF = torch.cat([features[layer] for layer in proposer.layer_ids], dim=-1) if proposer.layer_ids else None
    accepted: list[int] = []
    while anchor < last:
        new = features_NF[read:anchor] if features_NF is not None else torch.empty(anchor - read, 0)
        proposer.read(ids[read:anchor], new)
        read = anchor
        agreed = _agreed(proposer.propose(ids[anchor]), ids[anchor + 1 :], tree_nodes)
        accepted.append(agreed)
        anchor += agreed + 1
    return PromptRounds(len(text_ids) - 1, accepted, cut=anchor > last)


def _agreed(logits_SV: Tensor, following: list[int], tree_nodes: int | None) -> int:
    """Return how many of the tokens that follow are proposed, in a row."""
    if tree_nodes is None:
        proposed = logits_SV.argmax(dim=-1).tolist()
        pairs = zip(proposed, following, strict=False)
        return next((n for n, (one, two) in enumerate(pairs) if one != two), min(len(proposed), len(following)))
    tree, ids_N = grow_tree(logits_SV, tree_nodes, 0.0)

    def say(node: int) -> int:
        depth = 0 if node < 0 else tree.depths[node]
        return following[depth] if depth < len(following) else -1

    return len(walk_tree(tree, ids_N.tolist(), say))

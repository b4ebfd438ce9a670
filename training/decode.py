"""Decoding with a drafter: rounds of draft and verify, whose output is the target's own.

A round starts from a text whose last token (the bonus token of the round before) the target has not seen yet. The drafter
proposes what follows; the target reads the token and the proposals in one forward pass; the longest prefix
that it agrees with is kept, and its own next token is the new bonus token. A round that accepts n proposals emits n + 1
tokens, so tau, tokens per target forward, is 1 + mean(n).

At temperature 0 agreement means the target's likeliest token. Above, chains use speculative sampling (Leviathan et al.,
arXiv 2211.17192): a proposal drawn from the drafter's q is kept with probability min(1, p/q), and a rejected one is replaced by
a draw from max(p - q, 0). Trees draw the target's token at each node and walk on while the tree holds it. Both leave the
target's distribution as it is. Caches of target and drafter hold accepted tokens only: what was rejected is rolled back.

Letters: N new tokens, S proposals, V vocabulary, C candidates per slot, F features x width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.proposers import Proposer
from training.target import Target, TargetCache
from training.tree import DraftTree, build_tree


@dataclass(frozen=True)
class Limits:
    """When a text ends, and how tokens are chosen."""

    max_new_tokens: int = 256
    """Longest completion in tokens, the end token included."""
    end_token_ids: frozenset[int] = frozenset()
    """Tokens that end a completion."""
    temperature: float = 0.0
    """0 takes the likeliest token."""


@dataclass(frozen=True)
class Round:
    """One target forward pass after the prompt's."""

    accepted: int
    """Proposals that became part of the text."""
    proposed: int
    """Tokens that the target read beside the anchor: the chain's, or the nodes of the tree."""
    cut: bool
    """Whether the text ended inside this round, so that later proposals were never judged."""


@dataclass
class Decoded:
    """A completion and what it cost."""

    token_ids: list[int]
    """New tokens, the end token included. The first comes from the prompt's forward pass."""
    rounds: list[Round] = field(default_factory=list)
    """One per target forward pass after the prompt's; plain decoding accepts nothing."""
    target_s: float = 0.0
    """Seconds in the target after the prompt's forward pass."""
    drafter_s: float = 0.0
    """Seconds in the drafter, its context included."""


def decode_plain(target: Target, prompt_ids: list[int], limits: Limits, generator: torch.Generator) -> Decoded:
    """Return what the target says alone, one token per forward pass."""
    text = _Text(limits)
    cache = target.open_cache()
    step = target.extend(cache, _tensor(prompt_ids, target), ())
    decoded = Decoded([])
    while text.add(decoded.token_ids, [_choose(step.logits_NV[-1].float(), limits.temperature, generator)]):
        started = _now(target)
        step = target.extend(cache, _tensor(decoded.token_ids[-1:], target), ())
        decoded.target_s += _now(target) - started
        decoded.rounds.append(Round(0, 0, False))
    return decoded


def decode_drafted(
    target: Target,
    proposer: Proposer,
    prompt_ids: list[int],
    limits: Limits,
    generator: torch.Generator,
    tree_nodes: int | None = None,
) -> Decoded:
    """Return what the target says with a proposer's help.

    `tree_nodes` verifies a best-first tree of that many nodes a round; None verifies a chain.

    Raises:
        ValueError: the target's cache cannot hold a tree.
    """
    cache = target.open_cache()
    proposer.begin()
    text = _Text(limits)
    step = target.extend(cache, _tensor(prompt_ids, target), proposer.layer_ids)
    read_ids, features_NF = prompt_ids, step.features_NF
    decoded = Decoded([])
    going_on = text.add(decoded.token_ids, [_choose(step.logits_NV[-1].float(), limits.temperature, generator)])
    while going_on:
        anchor_id, started = decoded.token_ids[-1], _now(target)
        proposer.read(read_ids, features_NF)
        logits_SV = proposer.propose(anchor_id)
        drafted = _now(target)
        verifier = _Verifier(target, cache, anchor_id, proposer.layer_ids, limits.temperature, generator)
        verdict = verifier.chain(logits_SV) if tree_nodes is None else verifier.tree(logits_SV, tree_nodes)
        decoded.drafter_s += drafted - started
        decoded.target_s += _now(target) - drafted
        read_ids, features_NF = [anchor_id, *verdict.token_ids[:-1]], verdict.features_NF
        before = len(decoded.token_ids)
        going_on = text.add(decoded.token_ids, verdict.token_ids)
        added = len(decoded.token_ids) - before
        cut = added < len(verdict.token_ids)
        decoded.rounds.append(Round(added if cut else added - 1, verdict.proposed, cut))
    return decoded


def grow_tree(logits_SV: Tensor, num_nodes: int, temperature: float) -> tuple[DraftTree, Tensor]:
    """Return the best-first tree, and the token of every node."""
    logprobs_SV = (logits_SV / (temperature or 1.0)).log_softmax(-1)
    top = logprobs_SV.topk(min(num_nodes, logprobs_SV.shape[1]), dim=-1)
    tree = build_tree(top.values, num_nodes)
    ids = [int(top.indices[depth - 1, rank]) for depth, rank in zip(tree.depths, tree.ranks, strict=True)]
    return tree, torch.tensor(ids, device=logits_SV.device)


def walk_tree(tree: DraftTree, ids: list[int], say: Callable[[int], int]) -> list[int]:
    """Return the nodes whose tokens the text goes on with: `say` gives the token after a node, -1 being the root."""
    children = {(parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, ids, strict=True))}
    path: list[int] = []
    while (node := children.get((path[-1] if path else -1, say(path[-1] if path else -1)))) is not None:
        path.append(node)
    return path


@dataclass(frozen=True)
class _Verdict:
    token_ids: list[int]
    """Accepted proposals, then the target's own next token."""
    proposed: int
    features_NF: Tensor
    """Features of the anchor and the accepted proposals, which the target has now read."""


class _Text:
    """Decides when a completion is over."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def add(self, token_ids: list[int], new: list[int]) -> bool:
        """Append new tokens up to the end; return whether the text goes on."""
        for token in new:
            token_ids.append(token)
            if token in self.limits.end_token_ids or len(token_ids) >= self.limits.max_new_tokens:
                return False
        return True


@dataclass(frozen=True)
class _Verifier:
    """One round's forward pass of the target over the anchor and what is proposed after it."""

    target: Target
    cache: TargetCache
    anchor_id: int
    layer_ids: tuple[int, ...]
    temperature: float
    generator: torch.Generator

    def chain(self, logits_SV: Tensor) -> _Verdict:
        """Verify one proposal per slot; the cache keeps the anchor and what is accepted."""
        held = self.cache.length
        proposed_S = _choose_each(logits_SV, self.temperature, self.generator)
        ids_N = torch.cat([proposed_S.new_tensor([self.anchor_id]), proposed_S])
        step = self.target.extend(self.cache, ids_N, self.layer_ids)
        accepted, bonus = _agree(step.logits_NV.float(), logits_SV, proposed_S, self.temperature, self.generator)
        self.target.rollback(self.cache, held + 1 + accepted)
        tokens = [*proposed_S[:accepted].tolist(), bonus]
        return _Verdict(tokens, len(proposed_S), step.features_NF[: accepted + 1])

    def tree(self, logits_SV: Tensor, num_nodes: int) -> _Verdict:
        """Verify the best-first tree; the cache keeps the anchor and the path that is accepted."""
        tree, ids_N = grow_tree(logits_SV, num_nodes, self.temperature)
        depth_N, sees_NN = _with_root(tree, ids_N.device)
        read_N = torch.cat([ids_N.new_tensor([self.anchor_id]), ids_N])
        step = self.target.extend(self.cache, read_N, self.layer_ids, depth_N, sees_NN)
        tokens: list[int] = []

        def say(node: int) -> int:
            tokens.append(_choose(step.logits_NV[node + 1].float(), self.temperature, self.generator))
            return tokens[-1]

        path = walk_tree(tree, ids_N.tolist(), say)
        places = torch.tensor([0, *(node + 1 for node in path)], device=ids_N.device)
        self.target.keep(self.cache, places)
        return _Verdict(tokens, len(ids_N), step.features_NF[places])


def _agree(
    target_NV: Tensor, drafter_SV: Tensor, proposed_S: Tensor, temperature: float, generator: torch.Generator
) -> tuple[int, int]:
    """Return how many proposals are accepted, and the target's next token after them. N = S + 1."""
    if temperature == 0:
        likeliest_N = target_NV.argmax(dim=-1)
        accepted = int((likeliest_N[:-1] == proposed_S).long().cumprod(dim=0).sum())
        return accepted, int(likeliest_N[accepted])
    p_NV, q_SV = (target_NV / temperature).softmax(-1), (drafter_SV / temperature).softmax(-1)
    for slot, token in enumerate(proposed_S.tolist()):
        if float(torch.rand((), generator=generator, device=generator.device)) >= float(
            p_NV[slot, token] / q_SV[slot, token]
        ):
            left_V = (p_NV[slot] - q_SV[slot]).clamp(min=0)
            return slot, _draw(left_V / left_V.sum(), generator)
    return len(proposed_S), _draw(p_NV[-1], generator)


def _with_root(tree: DraftTree, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return depth [N] and visibility [N, N] of the root and its nodes, N = nodes + 1."""
    depth_N = torch.tensor([0, *tree.depths], device=device)
    sees_NN = torch.zeros(len(depth_N), len(depth_N), dtype=torch.bool, device=device)
    sees_NN[:, 0] = True
    sees_NN[1:, 1:] = tree.ancestors().to(device)
    return depth_N, sees_NN


def _choose(logits_V: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_V.argmax())
    return _draw((logits_V / temperature).softmax(-1), generator)


def _choose_each(logits_SV: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0 or len(logits_SV) == 0:
        return logits_SV.argmax(dim=-1)
    probabilities = (logits_SV / temperature).softmax(-1)
    return torch.multinomial(probabilities, 1, generator=generator).squeeze(1)


def _draw(probabilities_V: Tensor, generator: torch.Generator) -> int:
    return int(torch.multinomial(probabilities_V, 1, generator=generator))


def _now(target: Target) -> float:
    """Return the clock in seconds once the device has done what it was asked."""
    if target.device.type == "cuda":
        torch.cuda.synchronize(target.device)
    return time.perf_counter()


def _tensor(token_ids: list[int], target: Target) -> Tensor:
    return torch.tensor(token_ids, device=target.device)

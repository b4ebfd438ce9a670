"""Measuring proposers by decoding with them: tokens per target forward on prompts they never saw.

Training metrics flatter, because they put blocks at random positions of text that is right so far. Here every prompt is
decoded with the target alone, then with each proposer in each mode. The texts must be the same, and are compared token for
token; what differs is tau, the tokens that one forward pass of the target yields, and the time. Baselines are there for scale
only: at temperature 0 they are replayed along the target's text, which takes the same rounds and a fraction of the time.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from training.acceptance import Acceptance, PromptRounds, acceptance
from training.decode import Decoded, Limits, Round, decode_drafted, decode_plain
from training.prompts import Prompt
from training.proposers import PromptLookup, Proposer
from training.replay import replay, text_features
from training.target import Target

PLAIN = "plain"
"""Name and mode of decoding without a proposer."""

CHAIN = "chain"
"""Mode that verifies one proposal per slot."""


@dataclass(frozen=True)
class Measured:
    """One prompt decoded one way."""

    prompt_id: str
    domain: str
    source: str
    drafter: str
    """`plain`, or the name of a proposer."""
    mode: str
    """`plain`, `chain` or `tree:k`."""
    num_tokens: int
    """New tokens, the first included."""
    accepted: list[int]
    """Accepted proposals of every round."""
    num_proposed: int
    """Tokens that the target read beside the anchors, over all rounds."""
    cut: bool
    """Whether the text ended inside the last round."""
    same_text: bool
    """Whether the tokens equal those of plain decoding."""
    tie_gap: float | None
    """Where they part at temperature 0: how much likelier, in logits, the target alone finds the token of plain decoding.
    Near 0 it is a tie that the order of additions decides."""
    target_s: float
    """Seconds in the target after the prompt's forward pass."""
    drafter_s: float
    """Seconds in the proposer, its reading of the prompt included."""
    replayed: bool = False
    """Whether rounds were counted along the text of plain decoding instead of decoding; then times mean nothing."""

    def rounds(self) -> PromptRounds:
        """Return what acceptance is computed from."""
        return PromptRounds(self.num_tokens - 1, self.accepted, self.cut)


def measure(
    target: Target,
    proposers: Mapping[str, Proposer],
    prompt: Prompt,
    modes: tuple[str, ...],
    limits: Limits,
    seed: int = 0,
    baselines: frozenset[str] = frozenset(),
) -> tuple[list[Measured], list[int]]:
    """Decode a prompt plainly, then with every proposer in every mode; return what was measured, plain first, and the plain
    text. Proposers named in `baselines` are replayed where the text is greedy. Prompt lookup has no distribution to grow a
    tree from, so it is measured in chains only."""
    plain = decode_plain(target, prompt.token_ids, limits, _dice(target, prompt, seed))
    measured = [_measured(prompt, PLAIN, PLAIN, plain, plain, None)]
    for name, proposer in proposers.items():
        if name in baselines and limits.temperature == 0:
            measured += _replayed(target, name, proposer, prompt, plain, modes_of(proposer, modes))
            continue
        for mode in modes_of(proposer, modes):
            dice = _dice(target, prompt, seed)
            decoded = decode_drafted(target, proposer, prompt.token_ids, limits, dice, tree_nodes(mode))
            gap = None if limits.temperature else _tie_gap(target, prompt, plain.token_ids, decoded.token_ids)
            measured.append(_measured(prompt, name, mode, decoded, plain, gap))
    return measured, plain.token_ids


def modes_of(proposer: Proposer, modes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modes that a proposer can be measured in."""
    return (CHAIN,) if isinstance(proposer, PromptLookup) else modes


def tree_nodes(mode: str) -> int | None:
    """Return the nodes of `tree:k`, None for `chain`.

    Raises:
        ValueError: it is neither.
    """
    kind, _, nodes = mode.partition(":")
    if mode == CHAIN:
        return None
    if kind == "tree" and nodes.isdigit() and int(nodes) > 0:
        return int(nodes)
    raise ValueError(f"mode {mode!r}: expected `chain`, or `tree:k` with a number of nodes, e.g. tree:16")


def acceptance_by(
    measured: Iterable[Measured], group: str | None, num_slots: int | None = None
) -> dict[tuple[str, str, str], Acceptance]:
    """Return acceptance by (proposer, mode, value of `group`), where group is `domain`, `source`, or None for all together."""
    rows: dict[tuple[str, str, str], list[PromptRounds]] = defaultdict(list)
    for one in measured:
        if one.drafter != PLAIN:
            rows[one.drafter, one.mode, getattr(one, group) if group else "all"].append(one.rounds())
    return {key: acceptance(some, num_slots) for key, some in rows.items()}


@dataclass(frozen=True)
class Speed:
    """How fast one way of decoding was on this machine, prompt processing left out. Tau says what it could be."""

    drafter: str
    mode: str
    tokens_per_s: float
    speedup: float
    """Over plain decoding of the same prompts."""
    target_frac: float
    """Share of the time in the target."""
    proposed_per_round: float
    """Tokens that the target reads beside the anchor in one forward pass."""


def speeds(measured: Iterable[Measured]) -> list[Speed]:
    """Return the speed of every way of decoding, plain first."""
    grouped: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for one in measured:
        if one.replayed:
            continue
        grouped[one.drafter, one.mode].append(one)
    found: list[Speed] = []
    for (drafter, mode), some in grouped.items():
        target_s = sum(one.target_s for one in some)
        seconds = max(target_s + sum(one.drafter_s for one in some), 1e-9)
        rounds = max(1, sum(len(one.accepted) for one in some))
        rate = sum(one.num_tokens - 1 for one in some) / seconds
        plain = found[0].tokens_per_s if found else rate
        speedup = rate / max(plain, 1e-9)
        proposed = sum(one.num_proposed for one in some) / rounds
        found.append(Speed(drafter, mode, rate, speedup, target_s / seconds, proposed))
    return found


def _replayed(
    target: Target, name: str, proposer: Proposer, prompt: Prompt, plain: Decoded, modes: tuple[str, ...]
) -> list[Measured]:
    features = text_features(target, prompt.token_ids, plain.token_ids, proposer.layer_ids)
    found = []
    for mode in modes:
        rounds = replay(proposer, prompt.token_ids, plain.token_ids, features, tree_nodes(mode))
        decoded = Decoded(plain.token_ids, [Round(accepted, 0, False) for accepted in rounds.accepted])
        one = _measured(prompt, name, mode, decoded, plain, None)
        found.append(replace(one, cut=rounds.cut, replayed=True))
    return found


def _measured(
    prompt: Prompt, drafter: str, mode: str, decoded: Decoded, plain: Decoded, tie_gap: float | None
) -> Measured:
    return Measured(
        prompt_id=prompt.id,
        domain=prompt.domain,
        source=prompt.source,
        drafter=drafter,
        mode=mode,
        num_tokens=len(decoded.token_ids),
        accepted=[r.accepted for r in decoded.rounds],
        num_proposed=sum(r.proposed for r in decoded.rounds),
        cut=bool(decoded.rounds) and decoded.rounds[-1].cut,
        same_text=decoded.token_ids == plain.token_ids,
        tie_gap=tie_gap,
        target_s=decoded.target_s,
        drafter_s=decoded.drafter_s,
    )


def _tie_gap(target: Target, prompt: Prompt, plain: list[int], other: list[int]) -> float | None:
    """Return how far apart the target puts the first two tokens that differ, None where the texts are the same."""
    if plain == other:
        return None
    # Texts end by their tokens and their length alone, so one is never the beginning of the other.
    shared = next(n for n, (one, two) in enumerate(zip(plain, other, strict=False)) if one != two)
    ids = torch.tensor(prompt.token_ids + plain[:shared], device=target.device)
    logits_V = target.extend(target.open_cache(), ids, ()).logits_NV[-1].float()
    return float((logits_V[plain[shared]] - logits_V[other[shared]]).abs())


def _dice(target: Target, prompt: Prompt, seed: int) -> torch.Generator:
    """Random numbers of a prompt's own, so that they depend neither on order nor on what was measured before."""
    digest = hashlib.blake2b(f"{seed}/{prompt.id}".encode(), digest_size=7).digest()
    return torch.Generator(target.device).manual_seed(int.from_bytes(digest, "little"))

"""What rounds of decoding add up to: tau, acceptance by slot, a histogram, and how sure one can be of them.

Two means are in use and differ: pooled over rounds (what an engine's throughput follows) and per prompt, then over prompts
(what z-lab's benchmark prints). Both are given. Rounds of one text resemble each other, so intervals resample whole prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
"""Bootstrap samples behind an interval."""

CONFIDENCE = 0.95
"""Share of them inside it."""

FEWEST_PROMPTS = 5
"""Fewer resampled prompts give intervals that are far too narrow; then there is none."""

Interval = tuple[float, float]


@dataclass(frozen=True)
class PromptRounds:
    """The rounds of one decoded prompt."""

    gained_tokens: int
    """Tokens after the first, which the prompt's own forward pass gave."""
    accepted: list[int]
    """Accepted proposals of every round."""
    cut: bool
    """Whether the text ended inside the last round, so that its later proposals were never judged."""


@dataclass(frozen=True)
class Acceptance:
    """What a proposer earned on some prompts."""

    num_prompts: int
    num_rounds: int
    """Target forward passes after the prompts' own."""
    num_tokens: int
    """Tokens that these gained."""
    tau: float
    """Tokens per target forward, pooled over rounds."""
    tau_interval: Interval | None
    """95% bootstrap interval by prompt, None for too few prompts."""
    tau_per_prompt: float
    """Mean over prompts of each one's tau."""
    tau_per_prompt_interval: Interval | None
    slot_acceptance: list[float]
    """Share of rounds in which slot s is accepted, of those in which all earlier slots were."""
    histogram: list[int]
    """Rounds by accepted proposals, from 0 on."""


def acceptance(prompts: Sequence[PromptRounds], num_slots: int | None = None) -> Acceptance:
    """Return what the rounds of some prompts add up to. Prompts whose text ended before the first round have no tau.

    `num_slots` is how many tokens a round proposes at most: a round that accepts them all says nothing about a slot after them.
    """
    drafted = [one for one in prompts if one.accepted]
    tokens = np.array([one.gained_tokens for one in drafted], dtype=np.float64)
    rounds = np.array([len(one.accepted) for one in drafted], dtype=np.float64)
    if not drafted:
        return Acceptance(len(prompts), 0, 0, 1.0, None, 1.0, None, [], [])
    counts = np.bincount([accepted for one in drafted for accepted in one.accepted])
    return Acceptance(
        num_prompts=len(prompts),
        num_rounds=int(rounds.sum()),
        num_tokens=int(tokens.sum()),
        tau=float(tokens.sum() / rounds.sum()),
        tau_interval=bootstrap(len(drafted), lambda picks: tokens[picks].sum(axis=1) / rounds[picks].sum(axis=1)),
        tau_per_prompt=float((tokens / rounds).mean()),
        tau_per_prompt_interval=bootstrap(len(drafted), lambda picks: (tokens / rounds)[picks].mean(axis=1)),
        slot_acceptance=_by_slot(drafted)[:num_slots],
        histogram=[int(count) for count in counts],
    )


@dataclass(frozen=True)
class Difference:
    """How much more one proposer earns than another on the same prompts."""

    num_prompts: int
    delta: float
    """Pooled tau of the first minus that of the second."""
    interval: Interval | None
    """95% bootstrap interval over prompts, both resampled together; None for too few prompts."""

    @property
    def winner(self) -> int | None:
        """0 or 1, or None where the interval holds 0 or there is none: noise, as far as these prompts can tell."""
        if self.interval is None or self.interval[0] <= 0 <= self.interval[1]:
            return None
        return 0 if self.delta > 0 else 1


def difference(one: Sequence[PromptRounds], other: Sequence[PromptRounds]) -> Difference:
    """Return the difference in pooled tau; element i of both is the same prompt."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a.accepted and b.accepted]
    if not pairs:
        return Difference(0, 0.0, None)
    tokens = np.array([[a.gained_tokens, b.gained_tokens] for a, b in pairs], dtype=np.float64)
    rounds = np.array([[len(a.accepted), len(b.accepted)] for a, b in pairs], dtype=np.float64)
    taus = tokens.sum(axis=0) / rounds.sum(axis=0)

    def figure(picks: np.ndarray) -> np.ndarray:
        resampled = tokens[picks].sum(axis=1) / rounds[picks].sum(axis=1)
        return resampled[:, 0] - resampled[:, 1]

    return Difference(len(pairs), float(taus[0] - taus[1]), bootstrap(len(pairs), figure))


def bootstrap(num_prompts: int, figure: Callable[[np.ndarray], np.ndarray], seed: int = 0) -> Interval | None:
    """Return the percentile interval of a figure over resampled prompts, None for too few of them.

    Args:
        num_prompts: how many there are.
        figure: from picks, int64 [RESAMPLES, num_prompts], the figure of each resample, [RESAMPLES].
        seed: of the picks, so that figures of the same prompts are resampled alike.
    """
    if num_prompts < FEWEST_PROMPTS:
        return None
    picks = np.random.default_rng(seed).integers(num_prompts, size=(RESAMPLES, num_prompts))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(figure(picks), [outside, 1 - outside])
    return float(low), float(high)


def _by_slot(prompts: Sequence[PromptRounds]) -> list[float]:
    """A round that the text's end cut short says nothing about the slot after its last accepted one."""
    rounds = [accepted for one in prompts for accepted in one.accepted]
    cut = [one.accepted[-1] for one in prompts if one.cut]
    shares = []
    for slot in range(1, max(rounds) + 2):
        judged = sum(accepted >= slot - 1 for accepted in rounds) - sum(accepted == slot - 1 for accepted in cut)
        if judged:
            shares.append(sum(accepted >= slot for accepted in rounds) / judged)
    return shares

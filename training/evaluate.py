"""Measuring a drafter by decoding with it: tokens per target forward, by domain, on prompts it never saw.

Training metrics flatter, because they put blocks at random positions of text that is right so far. Here every prompt is
decoded with the target alone, with the drafter, and with an untrained drafter of the same shape. The three texts must be the
same, and are compared token for token; what differs is tau, the tokens that one forward pass of the target yields.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from curation.arrow_sets import HELDOUT, read_rows
from training.decode import Decoded, Limits, decode_drafted, decode_plain
from training.drafter import DFlashDrafter
from training.target import Target


@dataclass(frozen=True)
class Prompt:
    """A text to go on from."""

    id: str
    domain: str
    source: str
    token_ids: list[int]
    """The rendered prompt."""


@dataclass(frozen=True)
class Measured:
    """One prompt decoded one way."""

    prompt_id: str
    domain: str
    source: str
    drafter: str
    """`plain`, or the name of a drafter."""
    mode: str
    """`plain`, `chain` or `tree:k`."""
    num_tokens: int
    """New tokens, the first included."""
    accepted: list[int]
    """Accepted proposals of every round."""
    same_text: bool
    """Whether the tokens equal those of plain decoding."""
    seconds: float
    """In target and drafter, after the prompt's forward pass."""


def heldout_prompts(data: Path, most_per_domain: int, seed: int = 0) -> list[Prompt]:
    """Return prompts of a set's held-out rows, at most so many a domain, drawn by seed and in the set's order.

    Raises:
        ValueError: the set has no held-out rows.
    """
    by_domain: dict[str, list[Prompt]] = defaultdict(list)
    for row in read_rows(data / HELDOUT):
        if 1 in row.loss_mask and (start := row.loss_mask.index(1)) > 0:
            by_domain[row.domain].append(Prompt(row.id, row.domain, row.source, list(row.input_ids[:start])))
    if not by_domain:
        raise ValueError(f"{data}/{HELDOUT} holds no rows with a prompt; build the set with a held-out share")
    chooser = random.Random(seed)
    chosen = []
    for domain in sorted(by_domain):
        prompts = by_domain[domain]
        places = sorted(chooser.sample(range(len(prompts)), min(most_per_domain, len(prompts))))
        chosen += [prompts[place] for place in places]
    return chosen


def measure(
    target: Target,
    drafters: dict[str, DFlashDrafter],
    prompts: Iterable[Prompt],
    modes: tuple[str, ...],
    limits: Limits,
) -> Iterator[Measured]:
    """Decode every prompt plainly, then with every drafter in every mode; yield each as it is done."""
    for number, prompt in enumerate(prompts):
        plain = decode_plain(target, prompt.token_ids, limits, torch.Generator().manual_seed(number))
        yield _measured(prompt, "plain", "plain", plain, plain)
        for name, drafter in drafters.items():
            for mode in modes:
                generator = torch.Generator().manual_seed(number)
                nodes = None if mode == "chain" else int(mode.removeprefix("tree:"))
                decoded = decode_drafted(target, drafter, prompt.token_ids, limits, generator, nodes)
                yield _measured(prompt, name, mode, decoded, plain)


def _measured(prompt: Prompt, drafter: str, mode: str, decoded: Decoded, plain: Decoded) -> Measured:
    return Measured(
        prompt.id,
        prompt.domain,
        prompt.source,
        drafter,
        mode,
        len(decoded.token_ids),
        [r.accepted for r in decoded.rounds],
        decoded.token_ids == plain.token_ids,
        decoded.target_s + decoded.drafter_s,
    )


@dataclass(frozen=True)
class Acceptance:
    """What a drafter earned on some prompts."""

    num_prompts: int
    num_rounds: int
    """Target forward passes after the prompts' own."""
    tau: float
    """Tokens per target forward, pooled over rounds."""
    tau_per_prompt: float
    """Mean over prompts of each one's tau."""
    slot_acceptance: list[float]
    """Share of proposals accepted at slot 1, 2, ... among the rounds in which all slots before were."""


def accepted_by_group(measured: Iterable[Measured], group: str) -> dict[tuple[str, str, str], Acceptance]:
    """Return acceptance by (drafter, mode, value of `group`), where group is `domain` or `source`; value `all` pools everything."""
    rows: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for one in measured:
        if one.drafter != "plain":
            rows[one.drafter, one.mode, getattr(one, group)].append(one)
            rows[one.drafter, one.mode, "all"].append(one)
    return {key: acceptance(some) for key, some in rows.items()}


def acceptance(measured: list[Measured]) -> Acceptance:
    """Return what the rounds of some prompts add up to. Prompts that ended before the first round count as no round."""
    drafted = [one for one in measured if one.accepted]
    rounds = [accepted for one in drafted for accepted in one.accepted]
    if not rounds:
        return Acceptance(len(measured), 0, 1.0, 1.0, [])
    tau = sum(one.num_tokens - 1 for one in drafted) / len(rounds)
    per_prompt = [(one.num_tokens - 1) / len(one.accepted) for one in drafted]
    reached = [sum(accepted >= slot for accepted in rounds) for slot in range(max(rounds) + 2)]
    by_slot = [after / before for before, after in zip(reached, reached[1:], strict=False) if before]
    return Acceptance(len(measured), len(rounds), tau, sum(per_prompt) / len(per_prompt), by_slot)

"""`curate plan`: which domains to grow, by how much, at what cost, in which order.

Three inputs: a profile (what there is), target shares (what is wanted), and, where there is one, an evaluation per domain
(what still drafts badly). The set that is planned for has the target shares and throws nothing away unless a smaller one is
asked for: the domain with most tokens for its share sets its size, and every other domain lacks the difference.

Order follows accepted tokens gained per token generated. A share q of a domain that yields tau tokens per target forward
costs q / tau forwards per token of the mix, so tau of the mix is 1 / sum(q / tau). A domain's tau is taken to rise by a
constant for each doubling of its tokens, as losses fall with data. The next token of a domain that has n then gains in
proportion to q / (tau^2 n), whatever the constant; that is the order. The constant scales only the gains that are printed, and
is called an assumption there. Without an evaluation every tau is taken to be the same, which leaves the order of want, q / n.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GAIN_PER_DOUBLING = 0.25
"""Tokens per target forward gained by doubling a domain's tokens: an assumption, printed as one wherever it is used."""

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class DomainStock:
    """What there is of a domain."""

    rows: int
    tokens: int
    """Prompt and completion."""
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Growth:
    """What one domain lacks, what that costs, and what it brings."""

    domain: str
    share: float
    """Target share of tokens."""
    have: DomainStock
    lacking_tokens: int
    """Prompt and completion tokens between what there is and the target."""
    prompts: int
    """New prompts to ask."""
    generated_tokens: int
    """Completion tokens that they will cost."""
    hours: float | None
    """At the measured speed; None where no speed is known."""
    tau: float | None
    """Tokens per target forward now; None where nothing was evaluated."""
    gain: float | None
    """What growing this domain adds to tau of the target mix."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step of a data set."""

    growths: list[Growth]
    """Domains that lack tokens, in the order in which to grow them."""
    enough: list[str]
    """Domains that have their share."""
    beside: list[str]
    """Domains that have tokens and no target share."""
    total_tokens: int
    """Size of the balanced set that is planned for."""
    reachable_tokens: int
    """Size of the balanced set that can be had without growing anything."""
    binding: str | None
    """The domain that limits it."""
    tau_now: float | None
    tau_then: float | None
    gain_per_doubling: float
    tokens_per_second: float | None


def plan(
    stocks: Mapping[str, DomainStock],
    targets: Mapping[str, float],
    *,
    taus: Mapping[str, float] | None = None,
    total_tokens: int | None = None,
    expected_tokens: int = 1024,
    tokens_per_second: float | None = None,
    gain_per_doubling: float = GAIN_PER_DOUBLING,
) -> Plan:
    """Return what to generate next.

    Args:
        stocks: what there is of each domain.
        targets: share of each domain by tokens, normalised here.
        taus: tokens per target forward of each domain; None or a domain that is missing: not evaluated.
        total_tokens: size of the balanced set that is wanted; None: the smallest that has room for every token at hand.
        expected_tokens: completion tokens per prompt in a domain without rows.
        tokens_per_second: completion tokens that generation makes.
        gain_per_doubling: see the module.

    Raises:
        ValueError: no target shares, or no rows in any domain that has one.
    """
    shares = {domain: share / sum(targets.values()) for domain, share in targets.items() if share > 0}
    if not shares:
        raise ValueError("a plan needs target shares: `domains` in the manifest, or --domains code=20,math=30")
    have = {domain: stocks.get(domain, DomainStock(0, 0, 0)) for domain in shares}
    if not any(stock.tokens for stock in have.values()):
        raise ValueError(f"no rows in any domain with a target share ({', '.join(shares)}); found {', '.join(stocks)}")
    wanted = total_tokens or math.ceil(max(have[domain].tokens / share for domain, share in shares.items()))
    binding = min(shares, key=lambda domain: (have[domain].tokens / shares[domain], domain))
    known = dict(taus or {})
    growths = [
        _growth(domain, share, have[domain], wanted, _typical(stocks, expected_tokens), tokens_per_second)
        for domain, share in shares.items()
        if have[domain].tokens < math.floor(share * wanted)
    ]
    assumed = _assumed_taus(shares, known)
    order = sorted(growths, key=lambda growth: (-_urgency(growth, assumed[growth.domain]), growth.domain))
    evaluated = bool(known)
    grown = {g.domain: _tau_after(g, assumed[g.domain], gain_per_doubling) for g in growths}
    return Plan(
        growths=[_with_gain(g, shares, known, assumed, gain_per_doubling) for g in order],
        enough=[domain for domain in shares if domain not in grown],
        beside=[domain for domain in stocks if domain not in shares and stocks[domain].tokens],
        total_tokens=wanted,
        reachable_tokens=int(have[binding].tokens / shares[binding]),
        binding=binding,
        tau_now=_mix_tau(shares, assumed) if evaluated else None,
        tau_then=_mix_tau(shares, assumed | grown) if evaluated else None,
        gain_per_doubling=gain_per_doubling,
        tokens_per_second=tokens_per_second,
    )


def stocks_of(profile: Mapping[str, Any]) -> dict[str, DomainStock]:
    """Return what a `profile.json` holds of each domain.

    Raises:
        ValueError: it is not a profile.
    """
    try:
        return {
            share["name"]: DomainStock(share["rows"], share["tokens"], share["completion_tokens"])
            for share in profile["shares"]["domain"]
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a profile: no {error} in it; `curate profile` makes one") from error


def taus_of(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """Return tau of each domain in an `evaluation.json`, or in a plain mapping of domains to numbers.

    Raises:
        ValueError: there is none.
    """
    found = evaluation.get("by_domain") or evaluation.get("domains") or evaluation
    taus = {}
    for domain, value in found.items() if isinstance(found, Mapping) else ():
        tau = value.get("tau") if isinstance(value, Mapping) else value
        if isinstance(tau, (int, float)) and not isinstance(tau, bool) and tau > 0:
            taus[domain] = float(tau)
    if not taus:
        raise ValueError("no tau per domain in the evaluation; `drafter evaluate` writes one")
    return taus


def _typical(stocks: Mapping[str, DomainStock], expected_tokens: int) -> DomainStock:
    """Return a stand-in for a domain without rows: expected completions after prompts of the mean length."""
    rows = sum(stock.rows for stock in stocks.values())
    prompt = sum(stock.tokens - stock.completion_tokens for stock in stocks.values()) / max(1, rows)
    return DomainStock(1, max(1, round(prompt) + expected_tokens), expected_tokens)


def _growth(
    domain: str, share: float, have: DomainStock, wanted: int, typical: DomainStock, tokens_per_second: float | None
) -> Growth:
    basis = have if have.tokens else typical
    lacking = math.floor(share * wanted) - have.tokens
    prompts = math.ceil(lacking * basis.rows / basis.tokens)
    generated = round(prompts * basis.completion_tokens / basis.rows)
    hours = generated / tokens_per_second / _SECONDS_PER_HOUR if tokens_per_second else None
    return Growth(domain, share, have, lacking, prompts, generated, hours, None, None)


def _assumed_taus(shares: Mapping[str, float], known: Mapping[str, float]) -> dict[str, float]:
    """Return a tau for every domain: measured, else the worst that was measured, else 1 for all."""
    fallback = min((known[domain] for domain in shares if domain in known), default=1.0)
    return {domain: known.get(domain, fallback) for domain in shares}


def _urgency(growth: Growth, tau: float) -> float:
    """Return what the next generated token of a domain gains, up to a factor that all domains share."""
    per_generated = growth.lacking_tokens / max(1, growth.generated_tokens)
    return growth.share / tau**2 / _at_hand(growth) * per_generated


def _at_hand(growth: Growth) -> float:
    """Return the tokens of a domain, one row's worth where it has none."""
    return max(growth.have.tokens, growth.lacking_tokens / max(1, growth.prompts))


def _tau_after(growth: Growth, tau: float, gain_per_doubling: float) -> float:
    return tau + gain_per_doubling * math.log2(1 + growth.lacking_tokens / _at_hand(growth))


def _mix_tau(shares: Mapping[str, float], taus: Mapping[str, float]) -> float:
    return 1 / sum(share / taus[domain] for domain, share in shares.items())


def _gain(growth: Growth, shares: Mapping[str, float], taus: Mapping[str, float], gain_per_doubling: float) -> float:
    """Return what growing this domain alone adds to tau of the mix."""
    after = {**taus, growth.domain: _tau_after(growth, taus[growth.domain], gain_per_doubling)}
    return _mix_tau(shares, after) - _mix_tau(shares, taus)


def _with_gain(
    growth: Growth,
    shares: Mapping[str, float],
    known: Mapping[str, float],
    assumed: Mapping[str, float],
    gain_per_doubling: float,
) -> Growth:
    gain = _gain(growth, shares, assumed, gain_per_doubling) if known else None
    return Growth(
        growth.domain, growth.share, growth.have, growth.lacking_tokens, growth.prompts, growth.generated_tokens,
        growth.hours, known.get(growth.domain), gain,
    )  # fmt: skip

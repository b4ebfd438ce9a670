"""The profile of a corpus: what is in it, how much of it repeats or is broken, and how far it is from the mix that was wanted.

Everything is a question to the facts; no text is read. Tokens come first, because a drafter learns tokens: a domain with 20% of the
rows can have 60% of what is learned. Results are values, and `table` and `report` show them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl

from curation.corpus import Corpus
from curation.duplication import Duplication, duplication
from curation.facts import DOMAINS, OTHER, Flag
from curation.mixes import BALANCED_PILOT, PUBLISHED, Mix

PROFILE_VERSION = 1
"""Of `profile.json`; raised when a field changes its meaning."""

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
AXES = ("domain", "source", "language", "finish_reason", "thinking", "num_turns")
FAULTS = tuple(flag for flag in Flag if flag is not Flag.TOKENS_ESTIMATED)
"""Flags that a profile counts as faults."""

NOTEWORTHY_POINTS = 5.0
"""Percentage points between a domain's share of tokens and its target, from which the verdict speaks of it."""

_ALIASES = {
    "stem": "science",
    "tool_calling": "tool_use",
    "tools": "tool_use",
    "tool-use": "tool_use",
    "coding": "code",
}


@dataclass(frozen=True, slots=True)
class Share:
    """One value of an axis: how many rows and tokens have it."""

    name: str
    rows: int
    tokens: int
    """Prompt and completion."""
    completion_tokens: int
    row_frac: float
    token_frac: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts or completions are, in tokens."""

    mean: float
    quantiles: dict[str, float]
    bin_edges: list[int]
    """Powers of two; bin i holds lengths in [edge i, edge i+1)."""
    counts: list[int]
    counts_by_domain: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class Skew:
    """The corpus against one mix."""

    against: str
    origin: str
    is_target: bool
    """Whether this is the mix that was asked for, rather than somebody's published one."""
    shares: dict[str, tuple[float, float, float]]
    """By domain: share of rows here, share of tokens here, share there."""
    row_distance: float
    """Total variation distance by rows: the share of rows that would have to change domain."""
    token_distance: float
    """The same by tokens."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Domains that rows carry, against what their content says where the classifier is sure."""

    compared: int
    agreed: int
    abstained: int
    confusion: dict[str, dict[str, int]]
    """Rows by carried domain, then by predicted domain."""


@dataclass(frozen=True, slots=True)
class Profile:
    """All that a profile says."""

    folder: str
    digest: str
    """Of the shards and the reading settings."""
    num_shards: int
    lines: dict[str, int]
    rejects: dict[str, int]
    num_rows: int
    tokens: int
    prompt_tokens: int
    completion_tokens: int
    estimated_frac: float
    """Share of rows whose tokens are estimated from their text."""
    verdict: list[str]
    """Plain sentences, the most important first."""
    shares: dict[str, list[Share]]
    prompt_lengths: Lengths
    completion_lengths: Lengths
    duplication: Duplication
    faults: dict[str, int]
    faults_by_domain: dict[str, dict[str, int]]
    skews: list[Skew]
    agreement: Agreement

    def as_json(self) -> dict[str, Any]:
        """Return the content of `profile.json`."""
        return {"version": PROFILE_VERSION, **asdict(self)}


def profile(corpus: Corpus, targets: dict[str, float], *, near_threshold: float = 0.8) -> Profile:
    """Return the profile of a corpus.

    Args:
        targets: wanted share of each domain by tokens, from a manifest; empty where there is none.
        near_threshold: similarity from which prompts count as near duplicates.

    Raises:
        ValueError: the corpus has no row.
    """
    facts = corpus.facts.with_columns((pl.col("prompt_tokens") + pl.col("completion_tokens")).alias("tokens"))
    if facts.height == 0:
        found = ", ".join(f"{reason}: {count:,}" for reason, count in corpus.rejects.items()) or "only blank lines"
        raise ValueError(
            f"{corpus.folder} holds no completion in {corpus.counts.lines:,} lines ({found}); see {corpus.rejected}"
        )
    shares = {axis: shares_of(facts, axis) for axis in AXES}
    skews = [skew_against(shares["domain"], mix, is_target) for mix, is_target in _mixes(targets)]
    domains = [share.name for share in shares["domain"]]
    faults = {flag.name.lower(): _count(facts, flag) for flag in FAULTS if flag.name}
    repeats = duplication(facts, corpus.signatures, near_threshold)
    return Profile(
        folder=str(corpus.folder),
        digest=corpus.digest,
        num_shards=len(corpus.shards),
        lines=asdict(corpus.counts),
        rejects=corpus.rejects,
        num_rows=facts.height,
        tokens=_sum(facts["tokens"]),
        prompt_tokens=_sum(facts["prompt_tokens"]),
        completion_tokens=_sum(facts["completion_tokens"]),
        estimated_frac=float(facts["tokens_estimated"].mean() or 0.0),  # type: ignore[arg-type]  # a mean of booleans is a float
        verdict=[*verdict_on(skews[0]), *_verdict_on_faults(facts.height, faults, repeats, corpus)],
        shares=shares,
        prompt_lengths=lengths_of(facts, "prompt_tokens", domains),
        completion_lengths=lengths_of(facts, "completion_tokens", domains),
        duplication=repeats,
        faults=faults,
        faults_by_domain=_faults_by_domain(facts),
        skews=skews,
        agreement=agreement_of(facts),
    )


def shares_of(facts: pl.DataFrame, axis: str) -> list[Share]:
    """Return the shares of each value of a column, most tokens first (turn counts in order)."""
    values = facts.group_by(pl.col(axis).cast(pl.String).fill_null("unknown").alias("name")).agg(
        pl.len().alias("rows"),
        pl.col("tokens").cast(pl.UInt64).sum(),
        pl.col("completion_tokens").cast(pl.UInt64).sum(),
    )
    num_tokens = max(1, _sum(values["tokens"]))
    found = [
        Share(name, rows, tokens, completion, rows / facts.height, tokens / num_tokens)
        for name, rows, tokens, completion in values.iter_rows()
    ]
    if axis == "num_turns":
        return sorted(found, key=lambda share: int(share.name))
    return sorted(found, key=lambda share: (-share.tokens, share.name))


def lengths_of(facts: pl.DataFrame, column: str, domains: list[str]) -> Lengths:
    """Return quantiles and a histogram in powers of two of a token count."""
    values = facts[column].to_numpy()
    top = max(1, int(values.max()).bit_length())
    edges = [0, *(1 << power for power in range(top + 1))]
    bins = np.histogram(values, bins=edges)[0]
    by_domain = {
        domain: np.histogram(facts.filter(pl.col("domain") == domain)[column].to_numpy(), bins=edges)[0].tolist()
        for domain in domains
    }
    quantiles = {f"{quantile:g}": float(np.quantile(values, quantile)) for quantile in QUANTILES}
    return Lengths(float(values.mean()), quantiles, edges, bins.tolist(), by_domain)


def skew_against(domains: list[Share], mix: Mix, is_target: bool) -> Skew:
    """Return how the corpus differs from a mix. Domains are matched by name, `stem` meaning `science`."""
    there: dict[str, float] = {}
    for domain, share in mix.shares().items():
        there[_canonical(domain)] = there.get(_canonical(domain), 0.0) + share
    rows: dict[str, float] = {}
    tokens: dict[str, float] = {}
    for found in domains:
        name = _canonical(found.name)
        rows[name] = rows.get(name, 0.0) + found.row_frac
        tokens[name] = tokens.get(name, 0.0) + found.token_frac
    names = sorted(there.keys() | rows.keys(), key=lambda name: (-max(tokens.get(name, 0), there.get(name, 0)), name))
    shares = {name: (rows.get(name, 0.0), tokens.get(name, 0.0), there.get(name, 0.0)) for name in names}
    return Skew(
        against=mix.name,
        origin=mix.origin,
        is_target=is_target,
        shares=shares,
        row_distance=sum(abs(row - wanted) for row, _, wanted in shares.values()) / 2,
        token_distance=sum(abs(token - wanted) for _, token, wanted in shares.values()) / 2,
    )


def verdict_on(skew: Skew) -> list[str]:
    """Say in words which domains have too much or too little, the furthest off first."""
    word = "target" if skew.is_target else f"{skew.against} has"
    excess = {name: tokens - wanted for name, (_, tokens, wanted) in skew.shares.items()}
    off = sorted(skew.shares.items(), key=lambda item: (-round(abs(excess[item[0]]), 6), -excess[item[0]]))
    sentences = [
        f"{name} is {_percent(rows)} of samples and {_percent(tokens)} of tokens; {word} {wanted * 100:.3g}%"
        for name, (rows, tokens, wanted) in off
        if abs(tokens - wanted) * 100 >= NOTEWORTHY_POINTS
    ]
    missing = [
        name for name, (rows, _, wanted) in skew.shares.items() if rows == 0 and wanted * 100 >= NOTEWORTHY_POINTS
    ]
    if not sentences:
        return [f"the mix is within {NOTEWORTHY_POINTS:g} points of {skew.against} in every domain"]
    moved = f"{_percent(skew.token_distance)} of tokens are in another domain than {skew.against} would have them"
    return [*sentences, moved, *([f"nothing at all of {', '.join(missing)}"] if missing else [])]


def agreement_of(facts: pl.DataFrame) -> Agreement:
    """Compare the domains that rows carry with what their content says, for the domains that content can show."""
    carried = facts.filter(pl.col("domain_manifest").is_not_null())
    carried = carried.filter(pl.col("domain_manifest").replace(_ALIASES).is_in(DOMAINS))
    sure = carried.filter(pl.col("domain_predicted") != OTHER)
    confusion: dict[str, dict[str, int]] = {}
    for manifest, predicted, rows in (
        sure.group_by("domain_manifest", "domain_predicted").len().sort("len", descending=True).iter_rows()
    ):
        confusion.setdefault(manifest, {})[predicted] = rows
    agreed = sum(by.get(_canonical(domain), 0) for domain, by in confusion.items())
    return Agreement(sure.height, agreed, carried.height - sure.height, confusion)


def _mixes(targets: dict[str, float]) -> list[tuple[Mix, bool]]:
    """Return the mixes to compare with: the target first, or the balanced pilot where there is none."""
    if not targets:
        return [(mix, False) for mix in PUBLISHED]
    assert PUBLISHED[0] is BALANCED_PILOT
    return [(Mix("the target mix", "`domains` of the manifest", targets), True), *((mix, False) for mix in PUBLISHED)]


def _verdict_on_faults(num_rows: int, faults: dict[str, int], repeats: Duplication, corpus: Corpus) -> list[str]:
    """Say what else a person should know before training on this."""
    said = []
    rollouts = repeats.exact_prompt_rows - repeats.exact_rows
    if rollouts > num_rows * 0.01:
        said.append(f"{_percent(rollouts / num_rows)} of rows are further answers to a prompt that was answered before")
    repeated = repeats.near_prompt_rows - rollouts
    if repeated > num_rows * 0.01:
        said.append(
            f"{_percent(repeated / num_rows)} of rows repeat an earlier one or have a prompt near it "
            f"({_percent(repeats.exact_rows / num_rows)} word for word)"
        )
    for name, words in (("truncated", "cut off by the token budget"), ("loop", "repetition loops"), ("empty", "empty")):
        if faults[name] > num_rows * 0.01:
            said.append(f"{_percent(faults[name] / num_rows)} of completions are {words}")
    if corpus.counts.rejected:
        said.append(
            f"{corpus.counts.rejected:,} of {corpus.counts.lines:,} lines could not be used; they are listed in {corpus.rejected}"
        )
    return said


def _faults_by_domain(facts: pl.DataFrame) -> dict[str, dict[str, int]]:
    counted = facts.group_by("domain").agg(
        *[((pl.col("flags") & int(flag)) != 0).sum().alias(flag.name.lower()) for flag in FAULTS if flag.name]
    )
    return {row.pop("domain"): row for row in counted.sort("domain").iter_rows(named=True)}


def _count(facts: pl.DataFrame, flag: Flag) -> int:
    return int(((facts["flags"] & int(flag)) != 0).sum())


def _sum(column: pl.Series) -> int:
    return int(column.cast(pl.UInt64).sum())


def _canonical(domain: str) -> str:
    return _ALIASES.get(domain, domain)


def _percent(share: float) -> str:
    return f"{share * 100:.1f}%"

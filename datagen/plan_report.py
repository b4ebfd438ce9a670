"""What a plan holds, and what a person should know of it: rows and tokens by source and domain, what was left out and why, cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from manifests.schema import Manifest, Source

_SOURCE_HEAD = (
    "source",
    "domain",
    "format",
    "found",
    "dropped",
    "repeats",
    "elsewhere",
    "eligible",
    "wanted",
    "planned",
    "rows",
    "tokens",
)
_DOMAIN_HEAD = ("domain", "prompts", "rows", "tokens", "share", "target")
_SECONDS_PER_HOUR = 3600

_UNREAD = ("git_lfs_pointer", "damaged_archive", "damaged_parquet")
"""Reasons that stand for a whole file, or the rest of one, and not for a row."""


@dataclass(slots=True)
class SourceReport:
    """What one source gave. `found` = sum of `dropped` + `repeats` + sum of `duplicate_of` + `eligible`."""

    name: str
    domain: str
    format: str
    """Row format; what `auto` decided, where the manifest leaves it open."""
    wanted: int
    """Prompts that the manifest asks of it."""
    found: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows that cannot be asked, by reason."""
    first_dropped: dict[str, str] = field(default_factory=dict)
    """Where each reason was met first."""
    repeats: int = 0
    """Rows whose prompt stands earlier in the same source."""
    duplicate_of: dict[str, int] = field(default_factory=dict)
    """Rows whose prompt an earlier source holds, by that source."""
    eligible: int = 0
    """Distinct prompts that may be asked."""
    planned: int = 0
    """Prompts in the plan, those of an earlier, smaller plan included."""
    rows: int = 0
    """Generations in the plan: turns and rollouts counted each."""
    expected_tokens: int = 0
    """Completion tokens expected of `rows`."""
    commit: str | None = None
    """Commit of the hub data set that was read; None for local files."""


@dataclass(slots=True)
class PlanReport:
    """What a plan holds, and what was noticed on the way."""

    sources: list[SourceReport]
    warnings: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PlanReport:
        """Return the report that `as_dict` wrote."""
        return cls([SourceReport(**source) for source in document["sources"]], document["warnings"])

    def domains(self) -> dict[str, dict[str, int]]:
        """Return prompts, rows and expected tokens by domain, in order of first appearance."""
        totals: dict[str, dict[str, int]] = {}
        for source in self.sources:
            domain = totals.setdefault(source.domain, {"planned": 0, "rows": 0, "expected_tokens": 0})
            for name in domain:
                domain[name] += getattr(source, name)
        return totals


def report_text(
    manifest: Manifest, report: PlanReport, tokens_per_second: float | None = None, price_per_hour: float | None = None
) -> str:
    """Return the tables, the reasons, the warnings, and (with a speed) time and cost."""
    parts = [
        _table(_SOURCE_HEAD, [_source_line(source) for source in report.sources], num_text=3),
        _table(_DOMAIN_HEAD, _domain_lines(manifest, report), num_text=1),
        "\n".join(line for source in report.sources for line in _reasons(source)),
        "\n".join(f"warning: {warning}" for warning in report.warnings),
        _cost(report, tokens_per_second, price_per_hour),
    ]
    return "\n\n".join(part for part in parts if part)


def notices(source: Source, report: SourceReport) -> list[str]:
    """Return what a person should know of a source before paying for it.

    Raises:
        ValueError: prompts are wanted of it and none can be read. Prompts that other sources hold are a shortage, not a mistake.
    """
    reasons = ", ".join(f"{reason} {count}" for reason, count in report.dropped.items())
    if report.wanted and not report.eligible and not report.duplicate_of:
        held = "; ".join(f"{report.first_dropped[reason]}: {reason}" for reason in report.dropped if reason in _UNREAD)
        raise ValueError(
            f"source {source.name!r}: no row can be asked of {report.found} found"
            + (f" ({reasons})" if reasons else "")
            + (f"; {held}" if held else _hint(report))
        )
    notices = [
        f"source {source.name}: {reason} at {report.first_dropped[reason]}"
        for reason in report.dropped
        if reason in _UNREAD
    ]
    if report.planned < report.wanted:
        notices.append(
            f"source {source.name}: {report.wanted} prompts wanted, {report.planned} found; its share is not made up elsewhere"
        )
    if report.planned > report.wanted:
        notices.append(
            f"source {source.name}: {report.planned - report.wanted} prompts beyond its share stay, since they are planned already"
        )
    if source.hub is not None and source.hub.revision is None:
        notices.append(f"source {source.name}: no `revision`; pin it, or the plan cannot be made again")
    return notices


def _source_line(source: SourceReport) -> tuple[str, ...]:
    elsewhere = sum(source.duplicate_of.values())
    counts = (
        source.found,
        sum(source.dropped.values()),
        source.repeats,
        elsewhere,
        source.eligible,
        source.wanted,
        source.planned,
    )
    return (
        source.name,
        source.domain,
        source.format,
        *(f"{count:,}" for count in (*counts, source.rows, source.expected_tokens)),
    )


def _domain_lines(manifest: Manifest, report: PlanReport) -> list[tuple[str, ...]]:
    domains = report.domains()
    tokens = sum(domain["expected_tokens"] for domain in domains.values())
    targets = sum(manifest.domains.values())
    lines = []
    for name in [*domains, *(name for name in manifest.domains if name not in domains)]:
        domain = domains.get(name, {"planned": 0, "rows": 0, "expected_tokens": 0})
        share = f"{domain['expected_tokens'] / tokens:.1%}" if tokens else "-"
        target = f"{manifest.domains[name] / targets:.1%}" if name in manifest.domains else "-"
        lines.append((name, *(f"{domain[count]:,}" for count in ("planned", "rows", "expected_tokens")), share, target))
    total = [sum(domain[count] for domain in domains.values()) for count in ("planned", "rows", "expected_tokens")]
    return [*lines, ("total", *(f"{count:,}" for count in total), "", "")]


def _reasons(source: SourceReport) -> list[str]:
    dropped = [
        f"{source.name}: {count:,} dropped, {reason} (first: {source.first_dropped[reason]})"
        for reason, count in source.dropped.items()
    ]
    return dropped + [
        f"{source.name}: {count:,} are prompts of {other}" for other, count in source.duplicate_of.items()
    ]


def _cost(report: PlanReport, tokens_per_second: float | None, price_per_hour: float | None) -> str:
    if tokens_per_second is None:
        return ""
    tokens = sum(source.expected_tokens for source in report.sources)
    hours = tokens / tokens_per_second / _SECONDS_PER_HOUR
    said = f"{tokens:,} tokens at {tokens_per_second:,.0f}/s: {hours:,.1f} hours"
    if price_per_hour is not None:
        said += f", {hours * price_per_hour:,.2f} at {price_per_hour:,.2f} per hour"
    return said


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], num_text: int) -> str:
    """Return aligned columns, the first `num_text` of them to the left."""
    widths = [max(len(line[at]) for line in (head, *lines)) for at in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at < num_text else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *lines)
    )


def _hint(report: SourceReport) -> str:
    if "history_unanswered" in report.dropped:
        return "; the data holds no answers to the earlier turns: use `turns: all` (or `first`)"
    return "; see `format`, `column` and `filters`"

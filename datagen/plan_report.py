"""What a plan holds, as text for a person: rows and tokens by source and domain, what was left out and why, time and cost."""

from __future__ import annotations

from collections.abc import Sequence

from datagen.expansion import PlanReport, SourceReport
from manifests.schema import Manifest

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

"""A plan as text: for the terminal, and between the markers of DATA_EXPANSION.md."""

from __future__ import annotations

from pathlib import Path

from curation.expansion import Plan
from curation.next_manifest import Grown, SourceGrowth
from curation.table import columns, percent, plain
from datagen import shards

BEGIN = "<!-- draftmill:plan:begin -->"
END = "<!-- draftmill:plan:end -->"

_SOURCE_HEAD = ["source", "domain", "licence", "asked", "add"]


def plan_text(plan: Plan, grown: Grown | None, price_per_hour: float | None) -> str:
    """Return a plan for a terminal."""
    parts = [*_sentences(plan, price_per_hour)]
    if plan.growths:
        parts.insert(1, columns(*_domain_table(plan, price_per_hour)))
    if grown is not None and grown.sources:
        parts.append(columns(_SOURCE_HEAD, [_source_row(step) for step in grown.sources], left=3))
    parts += _shortfalls(grown)
    return "\n\n".join(parts)


def plan_markdown(plan: Plan, grown: Grown | None, price_per_hour: float | None) -> str:
    """Return a plan as the section of DATA_EXPANSION.md."""
    parts = [*_sentences(plan, price_per_hour)]
    if plan.growths:
        parts.insert(1, _markdown_table(*_domain_table(plan, price_per_hour)))
    if grown is not None and grown.sources:
        parts.append(_markdown_table(_SOURCE_HEAD, [_source_row(step) for step in grown.sources]))
    parts += _shortfalls(grown)
    return "\n\n".join(parts)


def write_section(path: Path, section: str) -> None:
    """Put a section between the markers of a document; a document without markers gets them at its end.

    Raises:
        ValueError: the document cannot be written, or has one marker without the other.
    """
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else "# Data expansion\n"
        if (BEGIN in text) != (END in text) or text.find(END) < text.find(BEGIN):
            raise ValueError(f"{path} has one of the markers {BEGIN} and {END} without the other; restore both")
        before, _, rest = text.partition(BEGIN)
        after = rest.partition(END)[2] if rest else "\n"
        before = before if rest else before.rstrip("\n") + "\n\n"
        shards.publish(path, [f"{before}{BEGIN}\n{section}\n{END}{after}".encode()])
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose another --document") from error


def _sentences(plan: Plan, price_per_hour: float | None) -> list[str]:
    said = [
        f"A balanced set of {plan.reachable_tokens:,} tokens can be had now; {plan.binding} limits it. "
        f"This plan makes it {plan.total_tokens:,} tokens."
    ]
    if not plan.growths:
        said.append("Every domain has its share of that: nothing to generate.")
    notes = []
    total = sum(growth.generated_tokens for growth in plan.growths)
    if plan.growths and plan.tokens_per_second:
        hours = sum(growth.hours or 0 for growth in plan.growths)
        cost = f", {hours * price_per_hour:,.2f} at {price_per_hour:g} an hour" if price_per_hour is not None else ""
        notes.append(
            f"{total:,} tokens to generate: {hours:,.2f} hours at {plan.tokens_per_second:,.0f} tokens/s{cost}."
        )
    elif plan.growths:
        notes.append(f"{total:,} tokens to generate; give --tokens-per-second for hours.")
    if plan.growths and plan.tau_now is not None and plan.tau_then is not None:
        notes.append(
            f"Order: accepted tokens gained per token generated. One target forward yields {plan.tau_now:.2f} tokens of the "
            f"target mix now and about {plan.tau_then:.2f} after the plan, if doubling a domain's tokens adds "
            f"{plan.gain_per_doubling:g} to its tau (an assumption: --gain-per-doubling)."
        )
    elif plan.growths:
        notes.append(
            "Order: share wanted over tokens at hand. With --evaluation it follows the accepted tokens gained."
        )
    if plan.enough:
        notes.append(f"Enough: {', '.join(plan.enough)}.")
    if plan.beside:
        notes.append(f"Without a target share, so never in a balanced set: {', '.join(plan.beside)}.")
    return said + ([" ".join(notes)] if notes else [])


def _domain_table(plan: Plan, price_per_hour: float | None) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the domains to grow; a column that nothing is known for is left out."""
    cells: dict[str, list[str]] = {
        "grow": [plain(growth.domain) for growth in plan.growths],
        "have": [f"{growth.have.tokens:,}" for growth in plan.growths],
        "target": [percent(growth.share) for growth in plan.growths],
        "filled": [percent(growth.have.tokens / (growth.share * plan.total_tokens)) for growth in plan.growths],
        "lacks": [f"{growth.lacking_tokens:,}" for growth in plan.growths],
        "prompts": [f"{growth.prompts:,}" for growth in plan.growths],
        "to generate": [f"{growth.generated_tokens:,}" for growth in plan.growths],
    }
    if plan.tokens_per_second:
        cells["hours"] = [f"{growth.hours or 0:,.2f}" for growth in plan.growths]
    if plan.tokens_per_second and price_per_hour is not None:
        cells["cost"] = [f"{(growth.hours or 0) * price_per_hour:,.2f}" for growth in plan.growths]
    if plan.tau_now is not None:
        cells["tau"] = ["" if growth.tau is None else f"{growth.tau:.2f}" for growth in plan.growths]
        cells["gain in tau of the mix"] = [f"{growth.gain or 0:+.3f}" for growth in plan.growths]
    return list(cells), [list(row) for row in zip(*cells.values(), strict=True)]


def _source_row(step: SourceGrowth) -> list[str]:
    return [plain(step.source.name), plain(step.source.domain), step.source.license, f"{step.have:,}", f"{step.add:,}"]


def _shortfalls(grown: Grown | None) -> list[str]:
    said = []
    for domain, prompts in (grown.unfilled if grown else {}).items():
        licences = grown.barred.get(domain) if grown else None
        way = (
            f"allow {' or '.join(licences)} (--allow-licenses) for the sources of the shipped mixes, or add one"
            if licences
            else "add a source with this domain to the manifest"
        )
        said.append(f"{domain}: no source gives {prompts:,} of these prompts; {way}.")
    return ["\n".join(f"- {line}" for line in said)] if said else []


def _markdown_table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Results as text for a terminal: aligned columns, a bar where a share is worth seeing, nothing wider than the window."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from curation.profiles import FAULTS, Lengths, Profile, Share

TITLES = {
    "domain": "domain",
    "source": "source",
    "language": "language",
    "finish_reason": "finish reason",
    "thinking": "thinking",
    "num_turns": "user turns",
}
"""What each axis is called where a person reads it."""

_BAR_WIDTH = 20
_MOST_VALUES = 12


def profile_text(profile: Profile) -> str:
    """Return a profile as text."""
    parts = [_headline(profile)]
    target = next((skew for skew in profile.skews if skew.is_target), None)
    wanted = {name: shares[2] for name, shares in target.shares.items()} if target else {}
    for axis, shares in profile.shares.items():
        parts.append(_shares_table(TITLES[axis], shares, wanted if axis == "domain" else {}))
    parts.append(_lengths_table(profile.prompt_lengths, profile.completion_lengths))
    parts.append(_faults_table(profile))
    parts.append(_skews_table(profile))
    parts.append("\n".join(["Verdict", *(f"  {sentence}" for sentence in profile.verdict)]))
    return printable("\n\n".join(parts))


def columns(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return rows as aligned columns, the first `left` of them flush left, the rest flush right."""
    widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def printable(text: str) -> str:
    """Return text without the control characters that a terminal would obey; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def plain(text: str, most: int = 40) -> str:
    """Return text from data as one short printable line."""
    shown = printable(text).replace("\n", "?")
    return shown if len(shown) <= most else shown[: most - 3] + "..."


def percent(share: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{share * 100:.1f}%"


def _headline(profile: Profile) -> str:
    estimated = f", {percent(profile.estimated_frac)} of rows estimated" if profile.estimated_frac else ""
    lines = profile.lines
    return (
        f"{profile.folder}: {profile.num_rows:,} completions in {profile.num_shards:,} shards, "
        f"{profile.tokens:,} tokens ({profile.completion_tokens:,} generated{estimated})\n"
        f"{lines['lines']:,} lines = {lines['accepted']:,} accepted + {lines['repaired']:,} repaired + "
        f"{lines['rejected']:,} rejected + {lines['blank']:,} blank"
    )


def _shares_table(title: str, shares: Sequence[Share], wanted: dict[str, float]) -> str:
    shown, rest = shares[:_MOST_VALUES], shares[_MOST_VALUES:]
    header = [title, "tokens", "of tokens", "rows", "of rows", *(["target"] if wanted else []), ""]
    rows = [
        [
            plain(share.name),
            f"{share.tokens:,}",
            percent(share.token_frac),
            f"{share.rows:,}",
            percent(share.row_frac),
            *([percent(wanted.get(share.name, 0.0))] if wanted else []),
            _bar(share.token_frac).ljust(_BAR_WIDTH),
        ]
        for share in shown
    ]
    text = columns(header, rows) if _width() > 70 else columns(header[:-1], [row[:-1] for row in rows])
    absent = [
        f"{name} (target {percent(share)})" for name, share in wanted.items() if name not in {s.name for s in shares}
    ]
    if rest:
        text += f"\n  and {len(rest)} more with {percent(sum(share.token_frac for share in rest))} of tokens"
    if absent:
        text += f"\n  absent: {', '.join(absent)}"
    return text


def _lengths_table(prompt: Lengths, completion: Lengths) -> str:
    names = {"0": "min", "1": "max"}
    header = ["tokens per row", "mean", *(names.get(name, f"p{float(name) * 100:g}") for name in prompt.quantiles)]
    rows = [
        [title, f"{lengths.mean:,.0f}", *(f"{value:,.0f}" for value in lengths.quantiles.values())]
        for title, lengths in (("prompt", prompt), ("completion", completion))
    ]
    return columns(header, rows)


def _faults_table(profile: Profile) -> str:
    repeats = profile.duplication
    counts = {flag.name.lower().replace("_", " "): profile.faults[flag.name.lower()] for flag in FAULTS if flag.name}
    counts |= {
        "prompt repeated word for word": repeats.exact_prompt_rows,
        "prompt and completion repeated": repeats.exact_rows,
        f"prompt near an earlier one (>= {repeats.threshold:g})": repeats.near_prompt_rows,
    }
    rows = [[name, f"{count:,}", percent(count / profile.num_rows)] for name, count in counts.items()]
    text = columns(["found", "rows", "of rows"], rows)
    if profile.rejects:
        text += "\n\n" + columns(
            ["rejected lines", "lines"], [[reason, f"{count:,}"] for reason, count in profile.rejects.items()]
        )
    return text


def _skews_table(profile: Profile) -> str:
    rows = [[skew.against, percent(skew.token_distance), percent(skew.row_distance)] for skew in profile.skews]
    return columns(["distance (total variation) from", "by tokens", "by rows"], rows)


def _bar(share: float) -> str:
    return "#" * round(share * _BAR_WIDTH)


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns

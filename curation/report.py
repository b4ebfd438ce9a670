"""A profile as files: `profile.json`, and `profile.html` that a person would show a colleague.

The page is one file without scripts, fonts or anything fetched. Plots are inline SVG that stretches with the page, and their
labels are HTML beside them, so that text keeps its size on a phone and in print. Everything that comes from data passes `escape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

import orjson

from curation.profiles import FAULTS, Lengths, Profile, Share, Skew
from curation.table import TITLES, percent
from datagen import shards

_MOST_BARS = 15
_MOST_SERIES = 7
"""Domains that get a colour of their own in a stacked plot; what remains is `the rest`."""

_NOTES = {
    "empty": "no completion at all",
    "truncated": "cut off by the token budget",
    "loop": "the text repeats itself",
    "unclosed_thinking": "a thinking block that never ends",
    "refusal": "opens by declining",
    "control_tokens": "chat-template markup inside the text",
    "mojibake": "wrong code page somewhere on the way",
    "repaired": "line read after repair",
    "empty_prompt": "no user turn with text",
}


def write(profile: Profile, folder: Path) -> tuple[Path, Path]:
    """Write `profile.json` and `profile.html` into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    as_json, as_html = folder / "profile.json", folder / "profile.html"
    shards.publish(as_json, [orjson.dumps(profile.as_json(), option=orjson.OPT_INDENT_2) + b"\n"])
    shards.publish(as_html, [page(profile).encode()])
    return as_json, as_html


def page(profile: Profile) -> str:
    """Return the report as one self-contained HTML page."""
    style = resources.files("curation").joinpath("report.css").read_text(encoding="utf-8")
    sections = [_header(profile), _domains(profile), _skews(profile.skews)]
    sections += [_axis(axis, shares) for axis, shares in profile.shares.items() if axis != "domain"]
    sections += [
        _lengths("Prompt length", profile.prompt_lengths),
        _lengths("Completion length", profile.completion_lengths),
    ]
    sections += [_repeats(profile), _faults(profile), _lines(profile), _agreement(profile)]
    title = escape(f"Profile of {profile.folder}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{style}</style></head><body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def _header(profile: Profile) -> str:
    figures = [
        ("completions", f"{profile.num_rows:,}"),
        ("tokens", _short(profile.tokens)),
        ("of them generated", _short(profile.completion_tokens)),
        ("shards", f"{profile.num_shards:,}"),
        ("prompts repeated", percent(profile.duplication.near_prompt_rows / profile.num_rows)),
    ]
    tiles = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in figures)
    first, *rest = profile.verdict
    more = "".join(f"<li>{escape(sentence)}</li>" for sentence in rest)
    estimated = (
        f'<p class="note">Token counts of {percent(profile.estimated_frac)} of the rows are estimated from their text: they carry no token ids.</p>'
        if profile.estimated_frac
        else ""
    )
    return (
        f'<header><p class="path">{escape(profile.folder)}</p><h1>{escape(_sentence(first))}</h1>'
        f'<ul>{more}</ul><div class="tiles">{tiles}</div>{estimated}</header>'
    )


def _domains(profile: Profile) -> str:
    skew = profile.skews[0]
    word = "target" if skew.is_target else skew.against
    keys = _legend([("tokens", "here, by tokens"), ("rows", "here, by rows"), ("target", word)])
    top = max((max(values) for values in skew.shares.values()), default=1.0) or 1.0
    bars = "".join(
        _label(name, f"{percent(tokens)} <small>{_points(tokens - wanted)}</small>")
        + _bars(
            [(tokens / top, "tokens"), (rows / top, "rows"), (wanted / top, "target")],
            f"{percent(tokens)} of tokens, {word} {percent(wanted)}",
        )
        for name, (rows, tokens, wanted) in skew.shares.items()
    )
    return _section(
        "Domains",
        f'{keys}<div class="bars">{bars}</div>',
        f"Share of tokens, and the difference from {word} in points.",
    )


def _skews(skews: Sequence[Skew]) -> str:
    rows = "".join(
        _label(skew.against, percent(skew.token_distance), escape(skew.origin))
        + _bars(
            [(skew.token_distance, "tokens"), (skew.row_distance, "rows")], f"{percent(skew.token_distance)} by tokens"
        )
        for skew in skews
    )
    note = "Total variation distance: the share of tokens (or rows) that would have to be in another domain. 0% is the same mix."
    return _section(
        "Distance from other mixes",
        _legend([("tokens", "by tokens"), ("rows", "by rows")]) + f'<div class="bars">{rows}</div>',
        note,
    )


def _axis(axis: str, shares: Sequence[Share]) -> str:
    shown, rest = shares[:_MOST_BARS], shares[_MOST_BARS:]
    top = max((max(share.token_frac, share.row_frac) for share in shown), default=1.0) or 1.0
    bars = "".join(
        _label(share.name, f"{percent(share.token_frac)} <small>{share.rows:,} rows</small>")
        + _bars(
            [(share.token_frac / top, "tokens"), (share.row_frac / top, "rows")],
            f"{share.tokens:,} tokens in {share.rows:,} rows",
        )
        for share in shown
    )
    note = f"and {len(rest)} more with {percent(sum(share.token_frac for share in rest))} of tokens" if rest else ""
    return _section(TITLES[axis].capitalize(), f'<div class="bars">{bars}</div>', note)


def _lengths(title: str, lengths: Lengths) -> str:
    names = {"0": "min", "1": "max"}
    cells = [("mean", f"{lengths.mean:,.0f}")]
    cells += [
        (names.get(name, f"p{float(name) * 100:g}"), f"{value:,.0f}") for name, value in lengths.quantiles.items()
    ]
    table = _table([name for name, _ in cells], [[value for _, value in cells]])
    first = next((place for place, count in enumerate(lengths.counts) if count), 0)
    ranked = sorted(lengths.counts_by_domain, key=lambda domain: -sum(lengths.counts_by_domain[domain]))
    series = [(domain, lengths.counts_by_domain[domain][first:]) for domain in ranked[:_MOST_SERIES]]
    rest = [
        sum(lengths.counts_by_domain[domain][place] for domain in ranked[_MOST_SERIES:])
        for place in range(first, len(lengths.counts))
    ]
    if any(rest):
        series.append(("the rest", rest))
    keys = _legend([(f"s{place}", name) for place, (name, _) in enumerate(series)])
    edges = "".join(f"<span>{_short(edge)}</span>" for edge in lengths.bin_edges[first:-1])
    plot = _stacked([counts for _, counts in series])
    return _section(
        title,
        f'{keys}<div class="plot">{plot}<div class="edges">{edges}</div></div>{table}',
        "Rows by tokens, in doubling steps; each step begins at the number under it.",
    )


def _repeats(profile: Profile) -> str:
    repeats = profile.duplication
    counted = [
        ("prompt and completion, word for word", repeats.exact_rows),
        ("prompt, word for word", repeats.exact_prompt_rows),
        (f"prompt, at {repeats.threshold:g} similarity or more", repeats.near_prompt_rows),
    ]
    bars = "".join(
        _label(name, f"{percent(rows / profile.num_rows)} <small>{rows:,} rows</small>")
        + _bars([(rows / profile.num_rows, "tokens")], "")
        for name, rows in counted
    )
    worst = "".join(f"<li>{escape(source)}: {rows:,}</li>" for source, rows in list(repeats.by_source.items())[:5])
    sources = f"<p>Most of them in</p><ul>{worst}</ul>" if worst else ""
    return _section(
        "Rows that repeat an earlier one",
        f'<div class="bars">{bars}</div>{sources}',
        "Similarity is the Jaccard index of five-word shingles, estimated from signatures.",
    )


def _faults(profile: Profile) -> str:
    names = [flag.name.lower() for flag in FAULTS if flag.name and profile.faults[flag.name.lower()]]
    if not names:
        return _section("Faults", "<p>None found.</p>", "")
    header = ["domain", *(name.replace("_", " ") for name in names)]
    rows_in = {share.name: share.rows for share in profile.shares["domain"]}
    rows = [["all", *(_heat(profile.faults[name], profile.num_rows) for name in names)]]
    for domain, faults in sorted(profile.faults_by_domain.items(), key=lambda item: -rows_in[item[0]]):
        rows.append([escape(domain), *(_heat(faults[name], rows_in[domain]) for name in names)])
    notes = "; ".join(f"{name.replace('_', ' ')}: {_NOTES[name]}" for name in names)
    return _section("Faults", _table(header, rows), f"Share of rows. {notes}.")


def _lines(profile: Profile) -> str:
    counts = _table(list(profile.lines), [[f"{count:,}" for count in profile.lines.values()]])
    reasons = (
        _table(
            ["rejected because", "lines"], [[escape(reason), f"{count:,}"] for reason, count in profile.rejects.items()]
        )
        if profile.rejects
        else ""
    )
    return _section("Lines read", counts + reasons, "lines = accepted + repaired + rejected + blank")


def _agreement(profile: Profile) -> str:
    agreement = profile.agreement
    if not agreement.compared:
        return ""
    predicted = sorted({name for by in agreement.confusion.values() for name in by})
    rows = [
        [escape(domain), *(_heat(by.get(name, 0), sum(by.values())) for name in predicted), f"{sum(by.values()):,}"]
        for domain, by in sorted(agreement.confusion.items(), key=lambda item: -sum(item[1].values()))
    ]
    said = f"{percent(agreement.agreed / agreement.compared)} of {agreement.compared:,} rows agree; on {agreement.abstained:,} more the classifier is not sure."
    return _section(
        "Domains carried, against what the content says",
        _table(["carried", *map(escape, predicted), "rows"], rows),
        said,
    )


def _section(title: str, body: str, note: str) -> str:
    return (
        f"<section><h2>{escape(title)}</h2>{body}"
        + (f'<p class="note">{escape(note)}</p>' if note else "")
        + "</section>"
    )


def _label(name: str, value: str, hint: str = "") -> str:
    tip = f' title="{hint}"' if hint else ""
    return f'<div class="name"{tip}>{escape(_one_line(name))}</div><div class="value">{value}</div>'


def _bars(bars: Sequence[tuple[float, str]], title: str) -> str:
    """Return horizontal bars of the given lengths (0 to 1) as an SVG that stretches with the page."""
    height = 10 * len(bars)
    drawn = "".join(
        f'<rect class="{kind}" y="{place * 10 + 1}" width="{max(0.0, min(1.0, length)) * 1000:.1f}" height="8"/>'
        for place, (length, kind) in enumerate(bars)
    )
    return (
        f'<svg class="bar" style="height:{height}px" viewBox="0 0 1000 {height}" preserveAspectRatio="none" role="img">'
        f"<title>{escape(title)}</title>{drawn}</svg>"
    )


def _stacked(series: Sequence[Sequence[int]]) -> str:
    """Return a stacked histogram: one column per bin, one colour per series."""
    num_bins = max((len(counts) for counts in series), default=1)
    top = max((sum(column) for column in zip(*series, strict=True)), default=1) or 1
    drawn, heights = [], [0.0] * num_bins
    for place, counts in enumerate(series):
        for column, count in enumerate(counts):
            size = count / top * 200
            if size:
                drawn.append(
                    f'<rect class="s{place}" x="{column * 10 + 0.5}" y="{200 - heights[column] - size:.2f}" width="9" height="{size:.2f}"/>'
                )
            heights[column] += size
    return f'<svg class="histogram" viewBox="0 0 {num_bins * 10} 200" preserveAspectRatio="none" role="img"><title>histogram</title>{"".join(drawn)}</svg>'


def _table(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _heat(count: int, out_of: int) -> str:
    """Return a table cell whose shade is the share."""
    share = count / out_of if out_of else 0.0
    return f'<td class="heat" style="--share:{min(1.0, share**0.5):.3f}" title="{count:,} rows">{percent(share) if count else ""}</td>'


def _legend(keys: Sequence[tuple[str, str]]) -> str:
    return (
        '<p class="legend">'
        + "".join(f'<span><i class="{kind}"></i>{escape(_one_line(name))}</span>' for kind, name in keys)
        + "</p>"
    )


def _points(difference: float) -> str:
    return f"{difference * 100:+.1f}"


def _short(number: int) -> str:
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _one_line(text: str, most: int = 60) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "\u2026"

"""Self-contained pages with plots: inline SVG, no scripts, readable on a phone and in the dark. All text is escaped here."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

WIDTH = 640
"""Pixels of a plot's own coordinates; the page scales it."""

BAR, GAP = 14, 12
"""Height of a bar, and the space between groups of bars, in pixels."""

LEFT, RIGHT, TOP, BOTTOM = 120, 60, 8, 30
"""Margins of a plot in pixels."""

LINE_HEIGHT = 280
"""Height of a plot of lines in pixels."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#999999", "#8c564b", "#17a2a2")
"""Okabe and Ito's, distinguishable without full colour vision, and four more; both themes use them."""


@dataclass(frozen=True)
class Bar:
    """A value with its interval."""

    group: str
    """Bars of a group stand together under its name."""
    series: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it where there is one."""

    name: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = field(default=())
    """x, low, high."""
    dashed: bool = False
    dots: bool = False
    """Dots instead of a stroke; a single point is always a dot."""
    strong: bool = False
    """A thicker stroke."""


def page(title: str, facts: Sequence[str], sections: Sequence[str]) -> str:
    """Return a whole HTML document; `sections` are HTML made by the functions below, `facts` are text."""
    shown = "".join(f"<p>{html.escape(fact)}</p>" for fact in facts if fact)
    return _PAGE.format(title=html.escape(title), facts=shown, sections="\n".join(s for s in sections if s))


def paragraph(text: str, strong: bool = False) -> str:
    """Return a paragraph of text over the whole width."""
    return f'<p class="{"wide strong" if strong else "wide"}">{html.escape(text)}</p>'


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others are figures."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<figure class="wide"><figcaption>{html.escape(title)}</figcaption><div class="scroll"><table>'
        f"<tr>{head}</tr>{body}</table></div></figure>"
    )


def bars(title: str, found: Sequence[Bar], start: float = 0.0, unit: str = "") -> str:
    """Return horizontal bars by group, those of one series in one colour, with their intervals as whiskers.

    Bars begin at `start`, e.g. at 1 for tau. Nothing is drawn where there is nothing.
    """
    if not found:
        return ""
    series = list(dict.fromkeys(bar.series for bar in found))
    groups = list(dict.fromkeys(bar.group for bar in found))
    low = min(start, *(value for bar in found for value in (bar.value, bar.low) if value is not None))
    high = max(start, *(value for bar in found for value in (bar.value, bar.high) if value is not None))
    ticks = _ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])
    across = _scale(low, high, LEFT, WIDTH - RIGHT)
    parts, down = [], float(TOP)
    for group in groups:
        some = [bar for bar in found if bar.group == group]
        middle = down + BAR * len(some) / 2
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.1f}" class="end">{html.escape(_short(group))}</text>')
        for bar in some:
            left, right = sorted((across(start), across(bar.value)))
            parts.append(
                f'<rect x="{left:.1f}" y="{down + 1:.1f}" width="{max(right - left, 0.5):.1f}" height="{BAR - 2}" '
                f'class="f{series.index(bar.series) % len(COLOURS)}"><title>{html.escape(f"{bar.series}: {bar.value:.3g}{unit}")}'
                "</title></rect>"
            )
            end = right
            if bar.low is not None and bar.high is not None:
                y = down + BAR / 2
                parts.append(
                    f'<line x1="{across(bar.low):.1f}" x2="{across(bar.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" class="whisker"/>'
                )
                end = max(right, across(bar.high))
            parts.append(f'<text x="{end + 5:.1f}" y="{down + BAR / 2:.1f}">{bar.value:.2f}{html.escape(unit)}</text>')
            down += BAR
        down += GAP
    axis = [
        f'<line x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{TOP}" y2="{down - GAP / 2:.1f}" class="grid"/>'
        f'<text x="{across(tick):.1f}" y="{down + 8:.1f}" class="mid">{tick:g}</text>'
        for tick in ticks
    ]
    return _figure(title, down + BOTTOM - 8, axis + parts, series)


def lines(title: str, found: Sequence[Line], x_name: str = "step", y_from: float | None = None) -> str:
    """Return curves over a common axis; nothing where there are no points."""
    found = [line for line in found if line.points or line.band]
    if not found:
        return ""
    xs = [x for line in found for x in [*(x for x, _ in line.points), *(x for x, _, _ in line.band)]]
    ys = [y for line in found for y in [*(y for _, y in line.points), *(y for _, *both in line.band for y in both)]]
    x_ticks = _ticks(min(xs), max(xs))
    y_ticks = _ticks(min(ys) if y_from is None else min(y_from, *ys), max(ys))
    across = _scale(min(xs), max(xs), 56, WIDTH - 20)
    down = _scale(min(y_ticks[0], *ys), max(y_ticks[-1], *ys), LINE_HEIGHT - BOTTOM, TOP)
    parts = [
        f'<line x1="56" x2="{WIDTH - 20}" y1="{down(tick):.1f}" y2="{down(tick):.1f}" class="grid"/>'
        f'<text x="50" y="{down(tick):.1f}" class="end">{tick:g}</text>'
        for tick in y_ticks
    ]
    parts += [
        f'<text x="{across(tick):.1f}" y="{LINE_HEIGHT - 14}" class="mid">{tick:,g}</text>'
        for tick in x_ticks
        if min(xs) <= tick <= max(xs)
    ]
    for number, line in enumerate(found):
        colour = number % len(COLOURS)
        if line.band:
            upper = [f"{across(x):.1f},{down(high):.1f}" for x, _, high in line.band]
            lower = [f"{across(x):.1f},{down(low):.1f}" for x, low, _ in reversed(line.band)]
            parts.append(f'<polygon points="{" ".join(upper + lower)}" class="f{colour}" opacity="0.18"/>')
        if line.dots or len(line.points) == 1:
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="2.5" class="f{colour}"/>' for x, y in line.points
            ]
        elif line.points:
            path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line.points)
            dash = ' stroke-dasharray="6 4"' if line.dashed else ""
            parts.append(
                f'<polyline points="{path}" fill="none" stroke-width="{3.2 if line.strong else 2}" class="s{colour}"{dash}/>'
            )
    parts.append(f'<text x="{WIDTH - 20}" y="{LINE_HEIGHT - 1}" class="end">{html.escape(x_name)}</text>')
    return _figure(title, LINE_HEIGHT + 4, parts, [line.name for line in found])


def _figure(title: str, height: float, parts: list[str], series: list[str]) -> str:
    legend = ""
    if len(series) > 1:
        keys = "".join(
            f'<span><i class="b{number % len(COLOURS)}"></i>{html.escape(name)}</span>'
            for number, name in enumerate(series)
        )
        legend = f'<div class="legend">{keys}</div>'
    caption = html.escape(title)
    return (
        f'<figure><figcaption>{caption}</figcaption>{legend}<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{caption}">{"".join(parts)}</svg></figure>'
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers that span the values."""
    span = (high - low) or abs(high) or 1.0
    power = 10.0 ** len(str(int(span))) if span >= 1 else 1.0
    while power > span:
        power /= 10
    step = next(power * k for k in (0.1, 0.2, 0.25, 0.5, 1, 2) if span / (power * k) <= 6)
    first = int(low // step)
    ticks = [first * step]
    while ticks[-1] < high - 1e-9 * span:
        ticks.append((first + len(ticks)) * step)
    return [round(tick, 10) for tick in ticks]


def _short(name: str, most: int = 17) -> str:
    return name if len(name) <= most else name[: most - 2] + ".."


_SERIES = "".join(
    f".f{n}{{fill:{colour}}}.s{n}{{stroke:{colour}}}.b{n}{{background:{colour}}}" for n, colour in enumerate(COLOURS)
)

_PAGE = (
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #1b1b1b; --soft: #5b5b5b; --grid: #e2e2e2; --back: #fff }}
@media (prefers-color-scheme: dark) {{ :root {{ --text: #e8e8e8; --soft: #a8a8a8; --grid: #3a3a3a; --back: #161616 }} }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1280px; padding: 1.2rem 1rem 3rem; color: var(--text); background: var(--back) }}
h1 {{ margin: 0 0 .4rem; font-size: 1.4rem }} p {{ margin: 0 0 .4rem; color: var(--soft); overflow-wrap: anywhere }}
.strong {{ color: var(--text); font-weight: 600 }}
main {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 460px), 1fr)); gap: 1.6rem; margin-top: 1.4rem }}
figure {{ margin: 0; min-width: 0 }} figcaption {{ font-weight: 600; margin-bottom: .2rem }} svg {{ width: 100%; height: auto }}
.wide {{ grid-column: 1 / -1 }} .scroll {{ overflow-x: auto }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--grid); white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0 }}
.legend {{ display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: 13px; color: var(--soft) }}
.legend i {{ display: inline-block; width: .8em; height: .8em; margin-right: .3em; border-radius: 2px }}
.grid {{ stroke: var(--grid) }} .whisker {{ stroke: var(--text); stroke-width: 1.4; opacity: .75 }}
text {{ font-size: 12px; fill: var(--soft); dominant-baseline: middle }} .end {{ text-anchor: end }} .mid {{ text-anchor: middle }}
"""
    + _SERIES.replace("{", "{{").replace("}", "}}")
    + """
</style></head><body>
<h1>{title}</h1>{facts}
<main>
{sections}
</main></body></html>
"""
)

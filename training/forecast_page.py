"""`forecast.html`: curves of runs, where they are going, and the references that they are measured against."""

from __future__ import annotations

from typing import Any

from training.plots import Line, lines, page, table


def render(report: dict[str, Any], drawn: list[dict[str, Any]]) -> str:
    """Return the page of a forecast; `drawn` holds points, band and middle by run and measure."""
    measures = list(dict.fromkeys(picture["measure"] for picture in drawn))
    plots = []
    for measure in measures:
        some = [picture for picture in drawn if picture["measure"] == measure]
        shown = [Line(_name(p, report), p["points"], p["band"], dots=True) for p in some]
        shown += [Line(f"{_name(p, report)}, forecast", p["middle"], dashed=True) for p in some if p.get("middle")]
        reference = report["references"].get(measure)
        if reference is not None:
            steps = [x for line in shown for x in (*(x for x, _ in line.points), *(x for x, _, _ in line.band))]
            shown.append(Line("reference", [(min(steps), reference), (max(steps), reference)]))
        plots.append(lines(f"{measure}, 80% band", shown))
    return page("Forecast", report["runs"], [_summary(report["outlooks"]), *plots])


def _name(picture: dict[str, Any], report: dict[str, Any]) -> str:
    return picture["run"] if len(report["runs"]) > 1 else "measured"


def _summary(outlooks: list[dict[str, Any]]) -> str:
    rows = []
    for one in outlooks:
        if one["refused"] is not None:
            rows.append((one["run"], one["measure"], str(one["num_points"]), "-", "-", one["refused"], "-", "-"))
            continue
        interval = "{:.3f} to {:.3f}".format(*one["interval80"])
        share = "-" if one["of_reference"] is None else "{:.0%} to {:.0%}".format(*one["of_reference"])
        rows.append(
            (
                one["run"],
                one["measure"],
                str(one["num_points"]),
                f"{one['now']:.3f}",
                f"{one['step']:,.0f}",
                f"{one['expected']:.3f} ({interval})",
                f"{one['gain_per_1000_steps']:+.3f}",
                share,
            )
        )
    header = ("run", "measure", "points", "now", "step", "forecast (80%)", "next 1,000 steps", "of reference")
    return table("Outlook", header, rows)

"""`comparison.html`: a report of `drafter compare` as one self-contained page with plots."""

from __future__ import annotations

import json
from typing import Any

from training.asking import POOLING, say_conditions
from training.plots import Bar, Line, bars, lines, page, paragraph, table


def render(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    from training.compare import ALL, say_differences

    conditions, found = report["conditions"], report["acceptance"]
    domains = list(next(iter(found.values())))
    taus = []
    for domain in domains:
        for name, by_domain in found.items():
            low, high = by_domain[domain]["tau_interval"] or (None, None)
            taus.append(Bar(domain, name, by_domain[domain]["tau"], low, high))
    return page(
        "Drafters compared: tokens per target forward",
        [conditions["target"], say_conditions(conditions), conditions["method"], POOLING],
        [
            *(paragraph(line, strong=not line.startswith(" ")) for line in say_differences(report)),
            bars(f"tau by domain ({conditions['mode']})", taus, start=1.0),
            *_differences(report),
            lines(
                "Accepted by slot, all earlier slots accepted",
                [Line(name, list(enumerate(by[ALL]["slot_acceptance"], start=1))) for name, by in found.items()],
                "slot",
                y_from=0.0,
            ),
            table("Conditions", ("what", "value"), [(k, json.dumps(v)) for k, v in conditions.items()]),
        ],
    )


def _differences(report: dict[str, Any]) -> list[str]:
    pairs = dict.fromkeys((found["one"], found["other"]) for found in report["differences"])
    drawn = []
    for one, other in pairs:
        some = [d for d in report["differences"] if (d["one"], d["other"]) == (one, other)]
        drawn.append(
            bars(
                f"{one} minus {other}, in tau",
                [Bar(d["domain"], "difference", d["delta"], *(d["interval"] or (None, None))) for d in some],
            )
        )
    return drawn

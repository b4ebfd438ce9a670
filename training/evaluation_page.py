"""`evaluation.html`: a report of `drafter evaluate` as one self-contained page with plots."""

from __future__ import annotations

import json
from typing import Any

from training.asking import POOLING, say_conditions
from training.plots import Bar, Line, bars, lines, page, table


def render(report: dict[str, Any]) -> str:
    """Return the page of a report."""
    from training.evaluation import say_losslessness

    conditions, results = report["conditions"], report["results"]
    mode = conditions["modes"][0]
    facts = [
        f"{conditions['drafter']['path']} on {conditions['target']}",
        say_conditions(conditions),
        *say_losslessness(report)[:4],
        POOLING,
    ]
    return page(
        f"tau {report['all']['tau']:.2f}: tokens per target forward ({mode})",
        facts,
        [
            bars(f"tau by domain ({mode})", _by(results, "by_domain", mode), start=1.0),
            bars("tau by way of decoding", _by_mode(results), start=1.0),
            lines("Accepted by slot, all earlier slots accepted", _slots(results), "slot", y_from=0.0),
            bars("Rounds by accepted proposals, share", _histogram(results, mode), unit="%"),
            bars(f"tau by source ({mode})", _by(results, "by_source", mode), start=1.0),
            bars("Speed on this machine, x plain decoding", _speeds(report["speeds"])),
            _prompts(report["prompts"]),
            table("Conditions", ("what", "value"), [(k, json.dumps(v)) for k, v in conditions.items()]),
        ],
    )


def _by(results: dict[str, Any], group: str, mode: str) -> list[Bar]:
    """Bars of every proposer measured in a mode, by domain or source, all together last."""
    found = []
    measured = {name: modes[mode] for name, modes in results.items() if mode in modes}
    values = sorted({value for place in measured.values() for value in place[group]})
    for value in [*values, "all"]:
        for name, place in measured.items():
            found.append(_bar(value, name, place["all"] if value == "all" else place[group][value]))
    return found


def _bar(group: str, series: str, acceptance: dict[str, Any]) -> Bar:
    low, high = acceptance["tau_interval"] or (None, None)
    return Bar(group, series, acceptance["tau"], low, high)


def _by_mode(results: dict[str, Any]) -> list[Bar]:
    return [_bar(mode, name, place["all"]) for name, modes in results.items() for mode, place in modes.items()]


def _slots(results: dict[str, Any]) -> list[Line]:
    return [
        Line(f"{name} {mode}", list(enumerate(place["all"]["slot_acceptance"], start=1)))
        for name, modes in results.items()
        for mode, place in modes.items()
    ]


def _histogram(results: dict[str, Any], mode: str) -> list[Bar]:
    found = []
    for name, modes in results.items():
        if mode in modes:
            counts = modes[mode]["all"]["histogram"]
            total = max(1, sum(counts))
            found += [Bar(str(accepted), name, 100 * count / total) for accepted, count in enumerate(counts)]
    return sorted(found, key=lambda bar: int(bar.group))


def _speeds(speeds: list[dict[str, Any]]) -> list[Bar]:
    return [Bar(speed["mode"], speed["drafter"], speed["speedup"]) for speed in speeds]


def _prompts(prompts: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["prompt_id"],
            one["domain"],
            one["drafter"],
            one["mode"],
            str(one["num_tokens"]),
            str(len(one["accepted"])),
            f"{(one['num_tokens'] - 1) / max(1, len(one['accepted'])):.2f}",
            "replayed" if one["replayed"] else "yes" if one["same_text"] else "no",
        )
        for one in prompts
        if one["drafter"] != "plain"
    ]
    return table("Prompts", ("prompt", "domain", "drafter", "mode", "tokens", "rounds", "tau", "same text"), rows)

"""`diagnosis.html`: what `drafter diagnose` found, above the curves that show it."""

from __future__ import annotations

from typing import Any

from training.plots import Line, lines, page, paragraph


def render(report: dict[str, Any], records: list[dict[str, Any]], card: dict[str, Any]) -> str:
    """Return the page of a diagnosis."""
    training = [record for record in records if record["kind"] == "train"]
    heldout = [record for record in records if record["kind"] == "heldout"]
    findings = report["findings"]
    said = [
        paragraph(
            f"{one['severity']}: {one['symptom']}. {one['evidence']}. Likely: {one['cause']}. Try: {one['knob']}.", True
        )
        for one in findings
    ]
    return page(
        f"Diagnosis of {report['run']}",
        [
            f"{report['records']} records up to step {report['last_step']} of {report['total_steps'] or 'an unknown number'}"
        ],
        [
            *(said or [paragraph("Nothing looks wrong.", True)]),
            lines("Loss, a dot per record, by the bucket that leads it", _loss_by_leading_bucket(training)),
            lines("Loss by length bucket", _grouped(training, "by_bucket")),
            lines("Loss by domain", _grouped(training, "by_domain")),
            lines("Accuracy by slot given the earlier ones, early and late", _slots(training), "slot", y_from=0.0),
            lines(
                "Tau: training blocks, and held-out rows by pointer walk",
                [Line("training", _points(training, "tau")), Line("held out", _points(heldout, "tau"))],
            ),
            lines("Gradient norm before clipping", [Line("norm", _points(training, "gradient_norm"))], y_from=0.0),
            lines("Learning rate", [Line("rate", _points(training, "learning_rate"))], y_from=0.0),
            lines("Share of time waiting for data", [Line("waiting", _points(training, "wait_frac"))], y_from=0.0),
            lines("Batches in the queue", [Line("batches", _points(training, "queue_depth"))], y_from=0.0),
        ],
    )


def _points(records: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(record["step"], record[name]) for record in records if record.get(name) is not None]


def _grouped(records: list[dict[str, Any]], group: str) -> list[Line]:
    names = sorted({name for record in records for name in record.get(group, {})})
    return [
        Line(name, [(r["step"], r[group][name]["loss"]) for r in records if "loss" in r.get(group, {}).get(name, {})])
        for name in names
    ]


def _loss_by_leading_bucket(records: list[dict[str, Any]]) -> list[Line]:
    """Dots of records by the bucket with the largest share of their blocks relative to its usual share."""
    usual: dict[str, float] = {}
    for record in records:
        for name, found in record.get("by_bucket", {}).items():
            usual[name] = usual.get(name, 0.0) + found.get("blocks", 0.0)
    dots: dict[str, list[tuple[float, float]]] = {}
    for record in records:
        buckets = record.get("by_bucket", {})
        if "loss" in record:
            leading = max(
                buckets, key=lambda name: buckets[name].get("blocks", 0.0) / (usual[name] or 1.0), default="all"
            )
            dots.setdefault(leading, []).append((record["step"], record["loss"]))
    return [Line(f"bucket {name}", points, dots=True) for name, points in sorted(dots.items())]


def _slots(records: list[dict[str, Any]]) -> list[Line]:
    third = max(1, len(records) // 3)
    found = []
    for name, part in (("first third", records[:third]), ("last third", records[-third:])):
        values: dict[int, list[float]] = {}
        for record in part:
            for key, value in record.items():
                if key.startswith("accuracy_slot_"):
                    values.setdefault(int(key.rpartition("_")[2]), []).append(value)
        found.append(Line(name, [(slot, sum(some) / len(some)) for slot, some in sorted(values.items())]))
    return found

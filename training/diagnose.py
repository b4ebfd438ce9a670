"""The `drafter diagnose` command: read a run's records and say what is likely wrong, why, and which knob to turn.

Light to import; numpy and the checks are loaded when the command runs. torch is not needed at all.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from training.findings import Finding


class DiagnoseOptions(BaseModel):
    """Read a run's metrics and say what is likely wrong with it, and which knob to turn."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: tyro.conf.Positional[Path]
    """A training run."""
    out: Path | None = None
    """The report, a .json; the page goes beside it. None writes them into the run."""


def diagnose(options: DiagnoseOptions) -> dict[str, Any]:
    """Return the diagnosis of a run, written as JSON and as a page.

    Raises:
        ValueError: it is no run, or one that has not begun.
    """
    from training.diagnosis_page import render
    from training.durable import write_json, write_text
    from training.sinks import read_records
    from training.symptoms import find_symptoms

    records = read_records(options.run)
    card = read_card(options.run)
    evaluation = _read_if_there(options.run / "evaluation.json")
    findings = find_symptoms(records, card, evaluation)
    report = {
        "run": str(options.run),
        "records": len(records),
        "last_step": records[-1]["step"] if records else 0,
        "total_steps": card.get("total_steps"),
        "findings": [asdict(finding) for finding in findings],
    }
    out = options.out or options.run / "diagnosis.json"
    write_json(out, report)
    write_text(out.with_suffix(".html"), render(report, records, card))
    return report | {"path": str(out), "said": say_findings(findings)}


def read_card(run: Path) -> dict[str, Any]:
    """Return the content of run.json, empty where there is none."""
    return _read_if_there(run / "run.json") or {}


def say_findings(findings: list[Finding]) -> list[str]:
    """Say every finding in four lines, or that there is none."""
    if not findings:
        return ["nothing looks wrong"]
    lines = []
    for finding in findings:
        lines += [
            f"{finding.severity}: {finding.symptom}",
            f"  seen: {finding.evidence}",
            f"  likely: {finding.cause}",
            f"  try: {finding.knob}",
        ]
    return lines


def print_diagnosis(report: dict[str, Any]) -> None:
    """Print what was found."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"{report['run']}: {report['records']} records up to step {report['last_step']}")
    for line in report["said"]:
        console.print(line)
    path = Path(report["path"])
    console.print(f"wrote {path} and {path.with_suffix('.html')}")


def _read_if_there(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error})") from error

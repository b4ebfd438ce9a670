"""`datagen plan` and `datagen import-mix`: what would run, and other people's mixes as manifests.

Each function takes its options and returns what there is to say; printing is the command module's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import tyro
import yaml
from pydantic import BaseModel, ConfigDict, Field

from manifests import schema
from manifests.schema import Manifest

if TYPE_CHECKING:
    from datagen.expansion import Progress
    from datagen.plan_report import PlanReport

_STYLE = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class PlanCommand(BaseModel):
    """Show what a manifest would ask, and what it would cost; nothing is generated."""

    model_config = _STYLE

    manifest: str
    """Manifest file, or the bare name of a mix that ships with Draftmill."""
    out: Path | None = None
    """Write the plan into this run folder, where `datagen run` finds it; without it the plan is only shown."""
    tokens_per_second: float | None = Field(default=None, gt=0)
    """Completion tokens per second of the whole engine: adds the time it would take."""
    price_per_hour: float | None = Field(default=None, ge=0)
    """Price of that engine per hour, in any currency: adds the cost."""
    measured: Path | None = None
    """Run folder whose `status.json` gives the speed, and the mean answer of each source that it has in common."""
    measure: bool = True
    """Check prompts against the target's context, which loads its tokenizer."""


class ImportMixCommand(BaseModel):
    """Turn a published mix into a manifest, and say what could not be carried over."""

    model_config = _STYLE

    mix: tyro.conf.Positional[Path]
    """Model-Optimizer's YAML (datasets with splits and caps, or a blend), open-instruct's with a `dataset_mixer`, or a Nemotron blend JSON."""
    out: Path | None = None
    """Manifest to write; without it the manifest is only shown."""
    target: str = "set-the/target-model"
    """Hub id or folder of the model that should answer; mixes name none."""
    total: int = Field(default=100_000, ge=1)
    """Prompts of a mix that has weights but no size."""
    uncapped: int = Field(default=100_000, ge=1)
    """Prompts to take of a data set that the mix takes whole."""


def plan(command: PlanCommand) -> str:
    """Expand a manifest, write the plan where that is asked for, and return the report as text.

    Raises:
        ValueError: everything the user can put right.
    """
    from datagen import ledger, locking
    from datagen.plan import open_or_create  # numpy, pyarrow: not for --help
    from datagen.plan_report import report_text
    from datagen.progress_view import View

    manifest, path = schema.load(command.manifest)
    measured = _measured(command.measured) if command.measured else None
    view = View()
    written = ""
    if command.out is not None:
        with locking.exclusive(ledger.hidden(command.out) / "plan.lock"):
            found = open_or_create(manifest, path, command.out, view.reading)
        report = found.report
        written = f"\n\n{command.out}: {found.num_rows:,} rows in {found.num_shards:,} shards, plan {found.digest[:12]}"
    else:
        report = _expanded(manifest, path, command.measure, view.reading)
    speed = command.tokens_per_second
    if measured is not None:
        speed = speed or measured.tokens_per_second
        for source in report.sources:
            if source.name in measured.mean_tokens:
                source.expected_tokens = round(source.rows * measured.mean_tokens[source.name])
    return report_text(manifest, report, speed, command.price_per_hour) + written


def import_mix(command: ImportMixCommand) -> str:
    """Read a published mix and return the manifest and what it leaves out, as text; write the manifest where that is asked for.

    Raises:
        ValueError: the file is no mix that is known.
    """
    from datagen.import_mix import read_mix

    mix = read_mix(command.mix, command.target, command.total, command.uncapped)
    text = "# yaml-language-server: $schema=manifest.schema.json\n" + yaml.safe_dump(
        mix.manifest, sort_keys=False, allow_unicode=True
    )
    notes = "".join(f"\n- {note}" for note in mix.notes)
    said = f"{len(mix.manifest['sources'])} sources. Not carried over, or to check:{notes}"
    if command.out is None:
        return f"{text}\n{said}"
    command.out.write_text(text, encoding="utf-8")
    return f"{command.out}: {said}"


def _expanded(manifest: Manifest, path: Path, measure: bool, progress: Progress) -> PlanReport:
    """Return the report of a plan that is not kept. Without the target's tokenizer it is shown all the same, and says so."""
    from datagen.expansion import expand
    from datagen.limits import PromptLimit
    from datagen.rendering import Renderer

    limit, unmeasured = None, "prompts were not measured against the target's context"
    if measure:
        try:
            limit = PromptLimit(Renderer(manifest.target, path.parent))
        except ValueError as error:  # no model at hand need not keep anybody from seeing the mix; a run will refuse
            unmeasured += f": {error}"
    report = expand(manifest, path, progress, limit=limit).report
    if limit is None:
        report.warnings.append(unmeasured)
    return report


@dataclass(frozen=True, slots=True)
class _Measured:
    """What a run has shown so far."""

    tokens_per_second: float | None
    """Over all of its processes, since each began; None where nothing was generated."""
    mean_tokens: dict[str, float]
    """Mean completion tokens of an answer by source."""


def _measured(folder: Path) -> _Measured:
    """Return speed and lengths of a run, over all of its processes.

    Raises:
        ValueError: the folder has no `status.json`.
    """
    statuses = [orjson.loads(path.read_bytes()) for path in sorted(folder.glob("status*.json"))]
    if not statuses:
        raise ValueError(f"{folder} has no status.json: nothing was measured there; give --tokens-per-second")
    done: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for status in statuses:
        for name, source in status["sources"].items():
            done[name] += source["done"]
            tokens[name] += source["completion_tokens"]
    speed = sum(status["completion_tokens_per_s"]["life"] for status in statuses)
    return _Measured(speed or None, {name: tokens[name] / done[name] for name in done if done[name]})

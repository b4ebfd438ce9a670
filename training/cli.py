"""`train` and `drafter`: set in, drafter out, and questions to a drafter.

`train` is generated from the recipe's models; `--recipe` replaces their defaults before the command line is read, so the order
is defaults, file, command line. What a person can fix ends in one line and exit code 2.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from pydantic import ValidationError

from training import compare as comparisons
from training import diagnose as diagnoses
from training import evaluation
from training import export as exports
from training import forecast as forecasts
from training import recipe as recipes
from training.compare import CompareOptions
from training.diagnose import DiagnoseOptions
from training.evaluation import EvaluateOptions
from training.export import ExportOptions
from training.forecast import ForecastOptions
from training.recipe import Recipe

ASK = "Ask a drafter how it does."

EXIT_CODES = {"finished": 0, "time": 0, "signal": 130}
"""What `train` returns by how a run ended. Time that is up is as planned; a run that was asked to stop is not done."""


@dataclass(frozen=True)
class TrainOptions:
    """Train a DFlash drafter on a tokenised set. Running the same command again goes on where it stopped."""

    data: Path
    """Folder of a set, as `curate build` writes it."""
    recipe: Path | None = None
    """YAML file that replaces the defaults below, or the bare name of a recipe that ships with Draftmill."""
    out: Path | None = None
    """Folder of the run; default runs/<name of the set>."""
    target: str | None = None
    """Folder or hub id of the target; default: the one that the set names."""
    init_from: Path | None = None
    """Start from a drafter: a run, its step_N, or a folder in z-lab's layout."""
    resume: bool = False
    """Fail unless there is a checkpoint to go on from."""
    dry_run: bool = False
    """Check everything, print the plan and the memory it needs per GPU, and allocate nothing."""
    trust_remote_code: bool = False
    """Run code that the target's repository carries. Off unless you trust its authors with your machine."""
    settings: Annotated[Recipe, tyro.conf.arg(name="")] = Recipe()
    """Fields of the recipe."""


def train_main() -> None:
    """Entry point of `train`."""
    sys.exit(_told_in_one_line(_train))


def drafter_main() -> None:
    """Entry point of `drafter`."""
    sys.exit(
        _told_in_one_line(lambda: tyro.extras.subcommand_cli_from_dict(QUESTIONS, prog="drafter", description=ASK))
    )


def read_train_options(arguments: list[str]) -> TrainOptions:
    """Return the options of `train`, the recipe file read and overridden."""
    named = _value_of("--recipe", arguments)
    defaults = TrainOptions(data=tyro.MISSING, settings=Recipe() if named is None else recipes.load(named))
    return tyro.cli(TrainOptions, prog="train", default=defaults, args=arguments)


def _train() -> int:
    options = read_train_options(sys.argv[1:])
    from training.job import Job
    from training.launch import RankDied, dry_run, launch

    job = Job(
        data=options.data,
        out=options.out or Path("runs") / options.data.resolve().name,
        recipe=options.settings,
        target=options.target,
        init_from=options.init_from,
        resume=options.resume,
        trust_remote_code=options.trust_remote_code,
    )
    if options.dry_run:
        print(dry_run(job))
        return 0
    try:
        return EXIT_CODES[launch(job)]
    except RankDied as death:
        print(f"error: {death}", file=sys.stderr)
        return 1


def _evaluate(options: Annotated[EvaluateOptions, tyro.conf.arg(name="")]) -> int:
    """Decode held-out prompts with target and drafter: tokens per target forward, by domain."""
    report = evaluation.evaluate(options)
    evaluation.print_report(report)
    return 1 if report["lossless"] is False else 0


def _compare(options: Annotated[CompareOptions, tyro.conf.arg(name="")]) -> int:
    """Measure drafters on the same prompts and features, and say who wins where and whether it is noise."""
    comparisons.print_comparison(comparisons.compare(options))
    return 0


def _export(options: Annotated[ExportOptions, tyro.conf.arg(name="")]) -> int:
    """Write a drafter in z-lab's or speculators' layout, check it from the disk, and say how engines serve it."""
    exports.print_exported(exports.export(options))
    return 0


def _diagnose(options: Annotated[DiagnoseOptions, tyro.conf.arg(name="")]) -> int:
    """Read a run's metrics and say what is likely wrong with it, and which knob to turn."""
    diagnoses.print_diagnosis(diagnoses.diagnose(options))
    return 0


def _forecast(options: Annotated[ForecastOptions, tyro.conf.arg(name="")]) -> int:
    """Extrapolate runs' accuracy, streaks and tau to a later step, with intervals, or say why not."""
    forecasts.print_forecast(forecasts.forecast(options))
    return 0


QUESTIONS: dict[str, Callable[..., int]] = {
    "evaluate": _evaluate,
    "compare": _compare,
    "export": _export,
    "diagnose": _diagnose,
    "forecast": _forecast,
}
"""The commands of `drafter`. Their options are light models; what answers them imports torch when it is called."""


def _value_of(flag: str, arguments: list[str]) -> str | None:
    for place, argument in enumerate(arguments):
        if argument == flag and place + 1 < len(arguments):
            return arguments[place + 1]
        if argument.startswith(f"{flag}="):
            return argument.partition("=")[2]
    return None


def _told_in_one_line(command: Callable[[], int]) -> int:
    """Run a command; a mistake that a person can mend becomes one line and exit code 2."""
    try:
        return command()
    except ValidationError as error:
        print(f"error: {recipes.say_problems(error)}", file=sys.stderr)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:  # the reader of our output has enough, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a file that is not there
        print(f"error: {error}", file=sys.stderr)
    return 2

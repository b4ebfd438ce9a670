"""The `datagen` command: prompts to completions.

Exit codes: 0 every planned row is answered; 1 finished, but some rows failed for good, or verification found a fault;
2 the user can put it right (one line says how); 3 stopped because too many answers were bad; 75 stopped with rows pending
(engine down, disk low): run it again later; 130 and 143 interrupted by Ctrl-C and SIGTERM: the same command resumes.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import tyro
from pydantic import ValidationError

from datagen.export import ExportCommand
from datagen.outcome import Outcome
from datagen.plan_commands import ImportMixCommand, PlanCommand
from datagen.session import Interrupts, RunCommand, answer
from datagen.survey import StatusCommand
from datagen.verify import VerifyCommand
from manifests import schema

_EXIT_CODES = {"complete": 0, "too many bad answers": 3, "engine down": 75, "disk low": 75}
_Flat = tyro.conf.arg(name="")


def run(command: Annotated[RunCommand, _Flat]) -> int:
    """Answer a manifest's prompts; the same command resumes."""
    interrupts = Interrupts()
    outcome = asyncio.run(answer(command, interrupts))
    print(_summary(outcome, command))
    if outcome.end == "interrupted":
        return interrupts.exit_code
    return 1 if outcome.end == "complete" and outcome.num_failed else _EXIT_CODES[outcome.end]


def plan(command: Annotated[PlanCommand, _Flat]) -> int:
    """Show what a manifest would ask, and what it would cost."""
    from datagen import plan_commands

    print(plan_commands.plan(command))
    return 0


def import_mix(command: Annotated[ImportMixCommand, _Flat]) -> int:
    """Turn a published mix into a manifest."""
    from datagen import plan_commands

    print(plan_commands.import_mix(command))
    return 0


def status(command: Annotated[StatusCommand, _Flat]) -> int:
    """Say where a run's folder stands, while it is worked on or after."""
    from datagen import survey

    print(survey.status(command))
    return 0


def verify(command: Annotated[VerifyCommand, _Flat]) -> int:
    """Prove that nothing is missing, doubled or damaged."""
    from datagen import verify as checks

    found = checks.verify(command)
    print(found)
    return 0 if found.is_sound else 1


def export(command: Annotated[ExportCommand, _Flat]) -> int:
    """Write completions in a form that other tools read."""
    from datagen import export as forms

    print(forms.export(command))
    return 0


COMMANDS: dict[str, Callable[[Any], int]] = {
    "run": run,
    "plan": plan,
    "status": status,
    "verify": verify,
    "export": export,
    "import-mix": import_mix,
}


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    description = "Prompts to completions of a target model."
    try:
        code = tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="datagen", description=description, args=arguments)
    except ValidationError as error:
        print(f"datagen: {schema.first_problems(error)}", file=sys.stderr)
        code = 2
    except BrokenPipeError:  # the reader of our output has enough, e.g. `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (ValueError, OSError) as error:
        print(f"datagen: {error}", file=sys.stderr)
        code = 2
    raise SystemExit(code)


def _summary(outcome: Outcome, command: RunCommand) -> str:
    tally = outcome.tally
    said = f"{outcome.num_done:,} answered, {outcome.num_failed:,} failed, {outcome.num_pending:,} pending in {command.out}"
    said += f"; this run {tally.completion_tokens:,} tokens at {tally.tokens_per_s(None):,.0f}/s"
    if outcome.end != "complete":
        because = f" ({outcome.message})" if outcome.message else ""
        said = f"{outcome.end}{because}: {said}; the same command goes on from there"
    elif outcome.num_failed:
        said += "; failed.jsonl says why, --retry-failed asks again"
    return said


if __name__ == "__main__":
    main()

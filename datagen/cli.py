"""The `datagen` command: prompts to completions.

Exit codes: 0 every planned row is answered; 1 finished, but some rows failed for good, or verification found a fault;
2 the user can put it right (one line says how); 3 stopped because too many answers were bad; 75 stopped with rows pending
(engine down, disk low): run it again later; 130 and 143 interrupted by Ctrl-C and SIGTERM: the same command resumes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import tyro

from datagen.runner import Outcome
from datagen.session import Interrupts, RunCommand, answer

_EXIT_CODES = {"complete": 0, "too many bad answers": 3, "engine down": 75, "disk low": 75}


def run(command: Annotated[RunCommand, tyro.conf.arg(name="")]) -> int:
    """Answer a manifest's prompts; the same command resumes."""
    interrupts = Interrupts()
    outcome = asyncio.run(answer(command, interrupts))
    if outcome is None:
        print(f"{command.out}: every planned row is answered; nothing to do")
        return 0
    print(_summary(outcome, command))
    if outcome.end == "interrupted":
        return interrupts.exit_code
    return 1 if outcome.end == "complete" and outcome.num_failed else _EXIT_CODES[outcome.end]


def main(arguments: list[str] | None = None) -> None:
    """Entry point."""
    try:
        code = tyro.extras.subcommand_cli_from_dict(
            {"run": run}, prog="datagen", description="Prompts to completions of a target model.", args=arguments
        )
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

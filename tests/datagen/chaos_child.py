"""A small program for the chaos tests: forks a run whenever it is told to, each in its own process group.

Imports are paid once and a run lives for tenths of a second, so that hundreds of kills fit into a test. A line on
stdin is a job; on stdout come the child's process id and, when it is gone, how it ended (minus a signal's number, or its exit code).
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import orjson

from datagen import ledger, locking
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.ledger import Ledger
from datagen.plan import open_plan
from datagen.progress_view import View
from datagen.session import Interrupts, work
from tests.datagen.small_plans import QUICK, ByteRenderer


def main() -> None:
    """Serve jobs until stdin ends."""
    for line in sys.stdin:
        job = orjson.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            os._exit(_run(job))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(job: dict[str, object]) -> int:
    interrupts = Interrupts()
    folder = Path(str(job["folder"]))
    rank, world = int(str(job["rank"])), int(str(job["world"]))
    try:
        with locking.rank_lock(ledger.hidden(folder), rank, world):
            book = Ledger(open_plan(folder), folder, rank, world)
            engine = EchoEngine(EchoOptions.model_validate(job["echo"]))
            outcome = asyncio.run(work(book, engine, ByteRenderer(), QUICK, interrupts, View(quiet=True)))
    except SystemExit as end:
        return int(str(end.code))
    except ValueError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return interrupts.exit_code if outcome.end == "interrupted" else 0


if __name__ == "__main__":
    main()

"""One `datagen run`, from a manifest to an outcome: plan, tokenizer, engine, run card, run, each in its order.

What is cheap and can fail comes first: the lock, the manifest, the plan, the tokenizer. The engine, which costs minutes
and a GPU, is started only when there are rows to ask.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field, model_validator

from datagen import ledger, locking, shards
from datagen.answers import PromptRenderer
from datagen.engines import Engine
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.engines.http import HttpEngine, HttpOptions
from datagen.engines.ray import RayEngine, RayOptions
from datagen.engines.vllm import VllmEngine
from datagen.ledger import Ledger
from datagen.outcome import Outcome, RunOptions, nothing_left
from datagen.progress_view import View, prometheus_text, status
from datagen.runner import Run
from manifests import schema

if TYPE_CHECKING:
    from datagen.plan import Plan

_SHOW_S = 2.0
_INSISTS_S = 1.0


class RunCommand(BaseModel):
    """Answer a manifest's prompts. The same command resumes: finished rows are never asked again."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    manifest: str
    """Manifest file, or the bare name of a mix that ships with Draftmill."""
    out: Path = Path("completions_raw")
    """Folder for the shards, the plan and the journals."""
    engine: Literal["vllm", "http", "ray", "echo"] = "vllm"
    """`vllm` in this process; `http` asks servers; `ray` puts engines on a cluster; `echo` pretends, for trying things out."""
    endpoint: tuple[str, ...] = ()
    """Servers for `--engine http`, e.g. `http://gpu-1:8000 http://gpu-2:8000`."""
    rank: int = Field(default=0, ge=0)
    """Which of `world` processes on this folder this is; it answers every `world`-th shard."""
    world: int = Field(default=1, ge=1)
    """How many processes share the folder."""
    quiet: bool = False
    """Show no progress."""
    prometheus: Path | None = None
    """Keep this file in Prometheus's text format, for node_exporter's textfile collector."""
    options: Annotated[RunOptions, tyro.conf.arg(name="")] = RunOptions()
    """How the run behaves."""
    echo: EchoOptions = EchoOptions()
    """What the echo engine pretends."""
    http: HttpOptions = HttpOptions()
    """How servers are spoken to."""
    ray: RayOptions = RayOptions()
    """Which engines run where."""

    @model_validator(mode="after")
    def _consistent(self) -> RunCommand:
        if self.rank >= self.world:
            raise ValueError(f"--rank {self.rank} is not below --world {self.world}")
        if (self.engine == "http") != bool(self.endpoint):
            raise ValueError("`--engine http` and `--endpoint URL ...` go together")
        return self


class Interrupts:
    """Ctrl-C and SIGTERM: before the run they end the process, during it they ask it to stop, a second one insists."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._received_at = 0.0
        self._ask: Callable[[], None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def ask(self, stop: Callable[[], None] | None) -> None:
        """Call `stop` on the first signal from now on; None ends the process instead."""
        self._ask = stop

    @property
    def exit_code(self) -> int:
        """128 + signal number, as shells do."""
        return 128 + (self.received or 0)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        # `timeout` and some schedulers send a signal to the process and to its group: two at once are one.
        insists = self.received is not None and now - self._received_at > _INSISTS_S
        self._received_at = self._received_at or now
        self.received = signal.Signals(number)
        if self._ask is None or insists:
            raise SystemExit(self.exit_code)
        self._ask()


async def answer(command: RunCommand, interrupts: Interrupts) -> Outcome:
    """Run `command` to its end, or until interrupted.

    Raises:
        ValueError: for everything the user can put right.
    """
    manifest, path = schema.load(command.manifest)
    view = View(command.quiet)
    hidden = ledger.hidden(command.out)
    with locking.rank_lock(hidden, command.rank, command.world):
        plan = _plan(manifest, path, command.out, hidden, view)
        book = Ledger(plan, command.out, command.rank, command.world)
        if command.options.retry_failed:
            book.reopen_failed()
        if not book.unfinished():
            return nothing_left(book)
        from datagen.rendering import Renderer  # brings transformers and torch

        renderer = Renderer(manifest.target, path.parent)
        engine = make_engine(command, manifest.target, renderer.model, renderer.context_length)
        view.say(f"{command.engine}: starting")
        return await work(book, engine, renderer, command.options, interrupts, view, command.prometheus)


async def work(
    book: Ledger,
    engine: Engine,
    renderer: PromptRenderer,
    options: RunOptions,
    interrupts: Interrupts,
    view: View,
    prometheus: Path | None = None,
) -> Outcome:
    """Start the engine, say in `run.json` what is about to be used, and run. The caller holds the rank's lock."""
    try:
        await engine.start()
        with locking.exclusive(book.hidden / "card.lock"):
            write_run_card(book, renderer.describe(), engine.describe())
        run = Run(book, engine, renderer, options)
        loop = asyncio.get_running_loop()
        interrupts.ask(lambda: _from_signal(loop, run))
        return await _watched(run, view, book.folder / status_name(book.rank, book.world), prometheus)
    finally:
        await engine.close()


def make_engine(command: RunCommand, target: schema.Target, model: str, context_length: int) -> Engine:
    """Return the engine that the command names, not started."""
    builders: dict[str, Callable[[], Engine]] = {
        "vllm": functools.partial(VllmEngine, target, model, context_length),
        "echo": functools.partial(EchoEngine, command.echo),
        "http": functools.partial(HttpEngine, command.endpoint, target.model, context_length, command.http),
    }
    if command.engine == "ray":
        return RayEngine(command.ray, builders[command.ray.engine])
    return builders[command.engine]()


def write_run_card(book: Ledger, target: dict[str, Any], engine: dict[str, Any]) -> None:
    """Write `run.json`: what was asked, of whom, with what. Engines of earlier runs on this folder stay listed."""
    plan = book.plan
    before = shards.read_card(book.folder) or {}
    engines = [known for known in before.get("engines", []) if known != engine]
    card = {
        "draftmill": importlib.metadata.version("draftmill"),
        "manifest": plan.manifest.model_dump(mode="json"),
        "plan": {"digest": plan.digest, "num_rows": plan.num_rows, "num_shards": plan.num_shards},
        "target": target,
        "engines": [*engines, engine],
    }
    if card != before:
        shards.write_card(book.folder / shards.RUN_CARD, card)


def status_name(rank: int, world: int) -> str:
    """Return the name of a rank's status file: `status.json` for a run of one."""
    return "status.json" if world == 1 else f"status_{rank:03d}_of_{world:03d}.json"


def _plan(manifest: schema.Manifest, path: Path, folder: Path, hidden: Path, view: View) -> Plan:
    from datagen.plan import open_or_create  # brings numpy, and the tokenizer when there is something to plan

    with locking.exclusive(hidden / "plan.lock"):
        return open_or_create(manifest, path, folder, lambda source, num_rows: view.reading(source, num_rows))


def _from_signal(loop: asyncio.AbstractEventLoop, run: Run) -> None:
    loop.call_soon_threadsafe(run.stop)


async def _watched(run: Run, view: View, status_path: Path, prometheus: Path | None) -> Outcome:
    """Run to the end, showing progress and keeping `status.json` fresh."""

    def look() -> None:
        snapshot = run.snapshot()
        view.show(snapshot, run.tally)
        said = status(snapshot, run.tally)
        shards.write_card(status_path, said)
        if prometheus is not None:
            shards.publish(prometheus, [prometheus_text(said).encode()])

    async def look_on() -> None:
        while True:
            look()
            await asyncio.sleep(_SHOW_S)

    looking = asyncio.create_task(look_on())
    try:
        outcome = await run.run()
    finally:
        looking.cancel()
        view.close()
    look()
    return outcome

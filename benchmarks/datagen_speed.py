"""What a run costs beside the engine: `python benchmarks/datagen.py [--quick]`.

Two figures, each of one run on this machine:

- `datagen_over_raw_vllm`: output tokens per second of a run over those of `vllm.LLM.generate` given all prompts at once,
  with the same prompts, sampling, seeds and engine settings; engine start is in neither. Rounds alternate, medians count.
- `echo_completions_per_s`: rows of 2,000 tokens on average that one client process answers with an engine that costs
  nothing: request, row, checksum, journal, fsync and publication included, tokenisation of prompts not. The same per
  second of processor time, and memory at the end over memory at a quarter of the way, stand beside it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import tyro
from pydantic import BaseModel, ConfigDict

from datagen import ledger
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.ledger import Ledger
from datagen.outcome import RunOptions
from datagen.runner import Run
from manifests import schema
from manifests.schema import Manifest, Sampling, Source, Target

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = schema.SHIPPED / "demo_prompts"
PASSES: dict[bool, int] = {True: 1, False: 3}
ECHO_ROWS = {True: 10_000, False: 60_000}
ECHO_TOKENS = 2_000


class Options(BaseModel):
    """Measure the run against the engine alone."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    quick: bool = False
    """About a minute on an idle machine: one round, fewer rows."""
    model: Path = Path("models/SmolLM2-135M-Instruct")
    """Target; made from its wheel where the folder is missing."""
    one: Literal["", "raw", "datagen"] = ""
    """Measure one side once, in this process, and print its tokens per second."""


class OnePromptRenderer:
    """Renders nothing: every prompt is the same few tokens, so that the engine of the measurement is the run alone."""

    context_length = 1 << 20

    def render(self, messages: list[dict[str, Any]], tools: Any, thinking: bool | None) -> list[int]:
        """Return a prompt of 50 tokens."""
        return list(range(100, 150))

    def split_reasoning(self, text: str, prompt_token_ids: list[int] | None) -> tuple[str | None, str]:
        """Return no reasoning."""
        return None, text

    def describe(self) -> dict[str, Any]:
        """Return what it is."""
        return {"tokenizer": "none"}


def main(options: Options) -> None:
    """Measure, and print one JSON object as the last line."""
    if options.one:
        print(json.dumps(asyncio.run(_datagen(options)) if options.one == "datagen" else _raw(options)))
        return
    if not (options.model / "config.json").is_file():
        from demo.smollm2 import convert

        convert(options.model)
    figures = echo(ECHO_ROWS[options.quick]) | against_vllm(options)
    print(json.dumps(figures))


def echo(num_rows: int) -> dict[str, float]:
    """Return completions per second, of wall time and of processor time, and how memory grew."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows = (json.dumps({"prompt": f"Question number {number}"}) + "\n" for number in range(num_rows))
        (folder / "prompts.jsonl").write_text("".join(rows))
        plan = _plan(folder, Target(model="none/none"), num_rows, max_tokens=2 * ECHO_TOKENS)
        run = Run(Ledger(plan, folder), EchoEngine(EchoOptions(tokens=ECHO_TOKENS)), OnePromptRenderer(), RunOptions())
        wall, processor, memory = time.perf_counter(), time.process_time(), []

        async def watched() -> None:
            async def watch() -> None:
                while run.tally.num_done < num_rows // 4:
                    await asyncio.sleep(0.05)
                memory.append(_resident_bytes())

            watching = asyncio.create_task(watch())
            assert (await run.run()).num_done == num_rows
            await watching

        asyncio.run(watched())
        memory.append(_resident_bytes())
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {
        "echo_completions_per_s": round(num_rows / wall, 1),
        "echo_completions_per_processor_s": round(num_rows / processor, 1),
        "echo_tokens_per_completion": round(run.tally.completion_tokens / num_rows, 1),
        "echo_memory_end_over_quarter": round(memory[1] / memory[0], 3),
    }


def against_vllm(options: Options) -> dict[str, float]:
    """Return output tokens per second of both sides, each measured in processes of its own, by turns."""
    speeds: dict[str, list[float]] = {"raw": [], "datagen": []}
    for _ in range(PASSES[options.quick]):
        for side, seen in speeds.items():
            command = [
                sys.executable,
                "-m",
                "benchmarks.datagen_speed",
                "--one",
                side,
                "--model",
                str(options.model.resolve()),
            ]
            command += ["--quick"] if options.quick else []
            said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
            seen.append(float(json.loads(said.splitlines()[-1])))
    raw, run = statistics.median(speeds["raw"]), statistics.median(speeds["datagen"])
    return {
        "raw_vllm_tokens_per_s": round(raw, 1),
        "datagen_tokens_per_s": round(run, 1),
        "datagen_over_raw_vllm": round(run / raw, 4),
    }


def _raw(options: Options) -> float:
    """Return the tokens per second of plain vLLM on all prompts at once."""
    from vllm import LLM, TokensPrompt

    from datagen.answers import seed_of
    from datagen.engines.vllm import VllmEngine, prepare_environment, sampling_params
    from datagen.rendering import Renderer

    with tempfile.TemporaryDirectory() as place:
        plan = _demo_plan(Path(place), options)
        prepare_environment()
        renderer = Renderer(plan.manifest.target)
        settings = VllmEngine(plan.manifest.target, renderer.model, renderer.context_length).describe()["settings"]
        engine = LLM(**settings)
        rows = list(plan.prompts())
        prompts = [TokensPrompt(prompt_token_ids=renderer.render(row.messages)) for row in rows]
        asked = [sampling_params(row.sampling, seed_of(row.id)) for row in rows]
        engine.generate(prompts[:2], asked[:2], use_tqdm=False)
        started = time.perf_counter()
        answers = engine.generate(prompts, asked, use_tqdm=False)
        return sum(len(answer.outputs[0].token_ids) for answer in answers) / (time.perf_counter() - started)


async def _datagen(options: Options) -> float:
    """Return the tokens per second of a run."""
    from datagen.answers import seed_of
    from datagen.engines import Request
    from datagen.engines.vllm import VllmEngine
    from datagen.rendering import Renderer

    with tempfile.TemporaryDirectory() as place:
        plan = _demo_plan(Path(place), options)
        renderer = Renderer(plan.manifest.target)
        engine = VllmEngine(plan.manifest.target, renderer.model, renderer.context_length)
        await engine.start()
        try:
            for row in plan.shard(0)[:2]:
                prompt = renderer.render(row.messages)
                await engine.generate(Request(row.id, prompt, row.sampling, seed_of(row.id), row.id))
            run = Run(Ledger(plan, plan.folder), engine, renderer, RunOptions(max_bad_frac=1))
            started = time.perf_counter()
            outcome = await run.run()
            return outcome.tally.completion_tokens / (time.perf_counter() - started)
        finally:
            await engine.close()


def _demo_plan(folder: Path, options: Options) -> Any:
    """Return a plan of the shipped demo prompts, every answer allowed the same number of tokens."""
    lines = [line for path in sorted(PROMPTS.glob("*.jsonl")) for line in path.read_text().splitlines()]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    settings = {"enforce_eager": True, "max_num_seqs": 64, "enable_prefix_caching": False}
    target = Target(model=str(options.model.resolve()), max_model_len=1024, engine=settings)
    num_rows, max_tokens = (128, 64) if options.quick else (len(lines), 160)
    return _plan(folder, target, num_rows, max_tokens)


def _plan(folder: Path, target: Target, num_rows: int, max_tokens: int) -> Any:
    """Return a plan of `prompts.jsonl` in `folder`."""
    from datagen.expansion import expand
    from datagen.plan import write

    source = Source(name="prompts", files="prompts.jsonl", domain="chat", license="Apache-2.0", count=num_rows)
    manifest = Manifest(
        name="benchmark", target=target, sampling=Sampling(max_tokens=max_tokens), sources=(source,), deduplicate=False
    )
    ledger.hidden(folder)
    return write(expand(manifest, folder / "manifest.yaml"), folder)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(tyro.cli(Options))

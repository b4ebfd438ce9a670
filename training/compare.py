"""The `drafter compare` command: who drafts better, where, and whether it is noise.

The target answers every prompt once; each contestant is then replayed along that text on the same features. Differences are
paired by prompt, which takes out how hard a prompt is, and intervals resample prompts. A contestant is a run, a step_N, or a
folder as published (z-lab's or speculators' layout). Light to import; torch is loaded when the command runs.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from training.asking import Asked, AskingOptions, prepare, say_conditions
from training.evaluation import LOOKUP, UNTRAINED, open_proposers, run_folder

if TYPE_CHECKING:
    from training.acceptance import Difference, PromptRounds
    from training.drafter import DFlashDrafter
    from training.prompts import Prompt
    from training.proposers import Proposer

ALL = "all"
"""Stands for all domains together."""


class CompareOptions(AskingOptions):
    """Measure drafters on the same prompts and features, and say who wins where and whether it is noise."""

    contestants: tyro.conf.Positional[tuple[Path, ...]] = ()
    """Drafters: runs, steps, or folders in z-lab's or speculators' layout. The first is compared with each other one."""
    mode: str = "chain"
    """`chain`, or `tree:k` for a best-first tree of k nodes."""
    baselines: tuple[Literal["untrained", "prompt-lookup"], ...] = (UNTRAINED, LOOKUP)
    """What is measured for scale: the first drafter's shape with fresh weights, and n-grams of the text itself."""


def compare(options: CompareOptions) -> dict[str, Any]:
    """Measure all contestants, write the report and its page, and return the report.

    Raises:
        ValueError: fewer than one contestant, one that is not a drafter of this target, or nothing to ask.
    """
    from tqdm import tqdm

    from training.comparison_page import render
    from training.drafter_files import weights_sha256
    from training.durable import write_json, write_text
    from training.evaluate import tree_nodes
    from training.prompt_journal import PromptJournal

    tree_nodes(options.mode)
    if not options.contestants:
        raise ValueError(
            "nobody to compare: give runs or drafters' folders, e.g. `drafter compare runs/a runs/b --data SET`"
        )
    for folder in options.contestants:
        if not folder.is_dir():
            raise ValueError(f"no drafter {folder}; give a run, a step_N or a folder with config.json")
    asked = prepare(options)
    drafters = _open_all(options.contestants, asked)
    proposers = open_proposers(asked, drafters, options.baselines, options.seed)
    conditions = asked.conditions | {
        "contestants": {
            name: {
                "path": str(path),
                "weights_sha256": weights_sha256(drafter),
                "config": drafter.config.model_dump(mode="json"),
            }
            for (name, drafter), path in zip(drafters.items(), options.contestants, strict=True)
        },
        "mode": options.mode,
        "method": "replayed along the target's own text, on one set of features",
    }
    out = options.out or run_folder(options.contestants[0]) / "comparison.json"
    journal = PromptJournal(out.parent, "comparison", conditions | {"proposers": list(proposers)})
    left = [prompt for prompt in asked.prompts if prompt.id not in journal.done]
    for prompt in tqdm(left, desc="prompts", unit="prompt", disable=None, file=sys.stderr):
        journal.add(prompt.id, _play(asked, proposers, prompt, options))
    report = report_of(conditions, [turn for prompt in asked.prompts for turn in journal.done[prompt.id]])
    write_json(out, report)
    write_text(out.with_suffix(".html"), render(report))
    journal.remove()
    return report | {"path": str(out)}


def report_of(conditions: dict[str, Any], turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what comparison.json holds: acceptance by contestant and domain, and the differences of every pair."""
    from training.acceptance import acceptance, difference

    domains = [*sorted({turn["domain"] for turn in turns}), ALL]
    names = list(turns[0]["rounds"])
    first = next(iter(conditions["contestants"]))
    shapes = [one["config"]["block_size"] for one in conditions["contestants"].values() if "config" in one]
    num_slots = max(shapes) - 1 if shapes else None

    def rounds(name: str, domain: str) -> list[PromptRounds]:
        return [_rounds(turn, name) for turn in turns if domain in (ALL, turn["domain"])]

    return {
        "conditions": conditions,
        "acceptance": {
            name: {domain: asdict(acceptance(rounds(name, domain), num_slots)) for domain in domains} for name in names
        },
        "differences": [
            {"one": one, "other": other, "domain": domain}
            | _told(one, other, difference(rounds(one, domain), rounds(other, domain)))
            for one, other in combinations(names, 2)
            if one == first or (one in conditions["contestants"] and other in conditions["contestants"])
            for domain in domains
        ],
        "prompts": turns,
    }


def print_comparison(report: dict[str, Any]) -> None:
    """Print tau by domain and contestant, then who wins where."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120)
    names = list(report["acceptance"])
    table = Table(
        title=f"tau on the same {report['conditions']['num_prompts']} prompts ({report['conditions']['mode']})"
    )
    for name in ("domain", "prompts", *names):
        table.add_column(name, justify="left" if name == "domain" else "right")
    for domain, found in report["acceptance"][names[0]].items():
        taus = (f"{report['acceptance'][name][domain]['tau']:.2f}" for name in names)
        table.add_row(domain, str(found["num_prompts"]), *taus)
    console.print(table)
    for line in say_differences(report):
        console.print(line, highlight=False)
    console.print(say_conditions(report["conditions"]))
    path = Path(report["path"])
    console.print(f"wrote {path} and {path.with_suffix('.html')}")


def say_differences(report: dict[str, Any]) -> list[str]:
    """Say of every pair of contestants who wins overall and in which domains, and what is noise."""
    lines = []
    pairs = dict.fromkeys((found["one"], found["other"]) for found in report["differences"])
    for one, other in pairs:
        found = {d["domain"]: d for d in report["differences"] if (d["one"], d["other"]) == (one, other)}
        lines.append(f"{one} against {other}: {found[ALL]['verdict']}")
        lines += [f"  {domain}: {d['verdict']}" for domain, d in found.items() if domain != ALL]
    num_domains = len(report["acceptance"][next(iter(report["acceptance"]))]) - 1
    if pairs and num_domains > 1:
        lines.append(
            f"Intervals are 95% by prompt; of {num_domains} domains without any difference, {0.05 * num_domains:.1f} would seem to have one."
        )
    return lines


def _told(one: str, other: str, found: Difference) -> dict[str, Any]:
    said = f"{found.delta:+.2f}"
    if found.interval is None:
        said = f"too few prompts to tell ({found.num_prompts}), {said}"
    else:
        said += " ({:+.2f} to {:+.2f})".format(*found.interval)
        said = f"noise, {said}" if found.winner is None else f"{(one, other)[found.winner]} wins, {said}"
    winner = None if found.winner is None else (one, other)[found.winner]
    return asdict(found) | {"winner": winner, "verdict": said}


def _open_all(folders: tuple[Path, ...], asked: Asked) -> dict[str, DFlashDrafter]:
    """Open the contestants under names that tell them apart: the last parts of their paths, as few as it takes."""
    from training.drafter_files import check_fits, open_drafter

    parts = 1
    while len({path.resolve().parts[-parts:] for path in folders}) < len(folders):
        parts += 1
        if parts > max(len(path.resolve().parts) for path in folders):
            raise ValueError("the same drafter is given twice")
    facts, drafters = asked.target.facts, {}
    for folder in folders:
        drafter = open_drafter(folder, facts.num_layers)
        check_fits(drafter, folder, facts.hidden_size, facts.vocab_size, facts.num_layers)
        drafters["/".join(folder.resolve().parts[-parts:])] = drafter
    return drafters


def _play(
    asked: Asked, proposers: dict[str, Proposer], prompt: Prompt, options: CompareOptions
) -> list[dict[str, Any]]:
    """Answer a prompt and replay every contestant along the answer; later turns likewise where all are asked."""
    import torch

    from training.decode import decode_plain
    from training.evaluate import modes_of, tree_nodes
    from training.replay import replay, text_features

    layer_ids = tuple(sorted({layer for proposer in proposers.values() for layer in proposer.layer_ids}))
    turns = []
    turn: Prompt | None = prompt
    while turn is not None:
        dice = torch.Generator(asked.target.device).manual_seed(options.seed)
        text_ids = decode_plain(asked.target, turn.token_ids, asked.limits, dice).token_ids
        features = text_features(asked.target, turn.token_ids, text_ids, layer_ids)
        rounds = {
            name: asdict(
                replay(proposer, turn.token_ids, text_ids, features, tree_nodes(modes_of(proposer, (options.mode,))[0]))
            )
            for name, proposer in proposers.items()
        }
        turns.append({"prompt": turn.id, "domain": turn.domain, "source": turn.source, "rounds": rounds})
        turn = asked.chat.next_turn(turn, text_ids) if options.turns == "all" else None
    return turns


def _rounds(turn: dict[str, Any], name: str) -> PromptRounds:
    from training.acceptance import PromptRounds

    return PromptRounds(**turn["rounds"][name])

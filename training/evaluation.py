"""The `drafter evaluate` command: decode prompts with a target and a drafter, and say what each forward pass earned.

Light to import; torch and the models are loaded when the command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import tyro

from training.asking import Asked, AskingOptions, prepare, say_conditions

if TYPE_CHECKING:
    from training.drafter import DFlashDrafter
    from training.evaluate import Measured
    from training.prompts import Prompt
    from training.proposers import Proposer

TRAINED: Final = "trained"
UNTRAINED: Final = "untrained"
LOOKUP: Final = "prompt-lookup"
SERVED: Final = "served"
"""Names of the drafter, of its shape with fresh weights, of n-grams of the text itself, and of what a server drafts with."""

SAY_EVERY = 4
"""Prompts between two lines of progress where there is no terminal."""

LARGEST_TIE = 1e-3
"""Logits closer than this are a tie in float32: which is larger depends on the order of additions, hence on batch shapes."""


class EvaluateOptions(AskingOptions):
    """Decode prompts with target and drafter: tokens per target forward, by domain."""

    run: Path | None = None
    """A training run, one of its step_N, or a drafter's folder in z-lab's or speculators' layout."""
    modes: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ("chain",)
    """How proposals are verified: `chain`, or `tree:k` for a best-first tree of k nodes."""
    baselines: tuple[Literal["untrained", "prompt-lookup"], ...] = (UNTRAINED,)
    """What is measured beside the drafter."""
    server: str | None = None
    """Measure what is served at this URL (vLLM or SGLang with a drafter) instead of decoding here."""


def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Measure, write the report and its page, and return the report.

    Raises:
        ValueError: the run, the set, the prompts or the target is not there, or they do not fit.
    """
    from tqdm import tqdm

    from training.drafter_files import weights_sha256
    from training.durable import write_json, write_text
    from training.evaluate import Measured, tree_nodes
    from training.evaluation_page import render
    from training.prompt_journal import PromptJournal

    for mode in options.modes:
        tree_nodes(mode)
    if options.server is not None:
        return evaluate_server(options)
    if options.run is None:
        raise ValueError(
            "no drafter: give a run, a step_N or an exported folder as --run, or --server for a served one"
        )
    if not options.run.is_dir():
        raise ValueError(f"no run {options.run}; `train` makes one")
    asked = prepare(options)
    drafter = _open(options.run, asked)
    proposers = open_proposers(asked, {TRAINED: drafter}, options.baselines, options.seed)
    conditions = asked.conditions | {
        "drafter": {
            "path": str(options.run),
            "weights_sha256": weights_sha256(drafter),
            "config": drafter.config.model_dump(mode="json"),
        },
        "modes": list(options.modes),
        "baselines": list(options.baselines),
    }
    out = options.out or run_folder(options.run) / "evaluation.json"
    journal = PromptJournal(out.parent, "evaluation", conditions)
    left = [prompt for prompt in asked.prompts if prompt.id not in journal.done]
    for number, prompt in enumerate(tqdm(left, desc="prompts", unit="prompt", disable=None, file=sys.stderr), start=1):
        journal.add(prompt.id, [asdict(one) for one in _conversation(asked, proposers, prompt, options)])
        if not sys.stderr.isatty() and (number % SAY_EVERY == 0 or number == len(left)):
            sys.stderr.write(f"{number}/{len(left)} prompts\n")
    measured = [Measured(**one) for prompt in asked.prompts for one in journal.done[prompt.id]]
    report = report_of(conditions, measured)
    write_json(out, report)
    write_text(out.with_suffix(".html"), render(report))
    journal.remove()
    return report | {"path": str(out)}


def evaluate_server(options: EvaluateOptions) -> dict[str, Any]:
    """Measure a served target and drafter, write the report and its page, and return the report.

    Raises:
        ValueError: nothing answers, it drafts nothing, or there is nothing to ask.
    """
    from tqdm import tqdm

    from training.asking import prepare_prompts
    from training.durable import write_json, write_text
    from training.evaluation_page import render
    from training.prompt_journal import PromptJournal
    from training.served import Server

    assert options.server is not None
    if options.turns == "all":
        raise ValueError("--turns all needs the target here; a server is asked first turns")
    server = Server(options.server)
    prompts, limits, conditions = prepare_prompts(options)
    conditions |= {
        "drafter": {"path": f"{server.engine} at {server.url}", "model": server.model, "num_slots": server.num_slots},
        "modes": ["chain"],
        "dtype": "the server's",
        "device": "the server's",
    }
    out = options.out or Path("evaluation.json")
    journal = PromptJournal(out.parent, "evaluation", conditions)
    left = [prompt for prompt in prompts if prompt.id not in journal.done]
    for prompt in tqdm(left, desc="prompts", unit="prompt", disable=None, file=sys.stderr):
        journal.add(prompt.id, asdict(server.ask(prompt, limits, options.seed)))
    measured = [_served(prompt, journal.done[prompt.id]) for prompt in prompts]
    report = report_of(conditions, measured, SERVED)
    if not all(journal.done[prompt.id]["by_round"] for prompt in prompts):
        _forget_rounds(report)
    write_json(out, report)
    write_text(out.with_suffix(".html"), render(report))
    journal.remove()
    return report | {"path": str(out)}


def open_proposers(
    asked: Asked, drafters: dict[str, DFlashDrafter], baselines: Iterable[str], seed: int
) -> dict[str, Proposer]:
    """Return drafters, on the target's device and in its dtype, and baselines of the first one's shape, by name."""
    import torch

    from training.drafter import DFlashDrafter
    from training.proposers import DFlashProposer, PromptLookup

    target, first = asked.target, next(iter(drafters.values())).config
    dtype = target.embed_VH.dtype
    proposers: dict[str, Proposer] = {}
    for name, drafter in drafters.items():
        proposers[name] = DFlashProposer(target, drafter.to(target.device, dtype).eval())
    if UNTRAINED in baselines:
        untrained = DFlashDrafter(first)
        untrained.init_weights(torch.Generator().manual_seed(seed))
        proposers[UNTRAINED] = DFlashProposer(target, untrained.to(target.device, dtype).eval())
    if LOOKUP in baselines:
        proposers[LOOKUP] = PromptLookup(first.vocab_size, first.block_size - 1, device=target.device)
    return proposers


def report_of(conditions: dict[str, Any], measured: list[Measured], headline: str = TRAINED) -> dict[str, Any]:
    """Return what evaluation.json holds. `all` and `by_domain` are those of the headline's proposer in the first mode."""
    from training.evaluate import acceptance_by, speeds

    groups: dict[str, Any] = {}
    shape = conditions["drafter"].get("config")
    num_slots = shape["block_size"] - 1 if shape else conditions["drafter"].get("num_slots")
    for name, group in (("all", None), ("by_domain", "domain"), ("by_source", "source")):
        for (drafter, mode, value), found in acceptance_by(measured, group, num_slots).items():
            place = groups.setdefault(drafter, {}).setdefault(mode, {"all": {}, "by_domain": {}, "by_source": {}})
            if group is None:
                place["all"] = asdict(found)
            else:
                place[name][value] = asdict(found)
    drafted = [one for one in measured if one.drafter not in ("plain", SERVED) and not one.replayed]
    first = groups[headline][conditions["modes"][0]]
    return {
        "conditions": conditions,
        "headline": headline,
        "all": first["all"],
        "by_domain": first["by_domain"],
        "results": groups,
        "texts": len(drafted),
        "same_text": sum(one.same_text for one in drafted),
        "different": [
            {"prompt": one.prompt_id, "drafter": one.drafter, "mode": one.mode, "tie_gap": one.tie_gap}
            for one in drafted
            if not one.same_text
        ],
        "lossless": is_lossless(conditions, drafted),
        "speeds": [asdict(speed) for speed in speeds(measured)],
        "prompts": [asdict(one) for one in measured],
    }


def is_lossless(conditions: dict[str, Any], drafted: list[Measured]) -> bool | None:
    """Return whether every text is that of plain decoding but for ties; None where that is no fair demand: sampled texts
    follow other random numbers, and bfloat16 rounds differently from shape to shape."""
    if conditions["temperature"] > 0 or conditions["dtype"] != "float32" or not drafted:
        return None
    return all(one.same_text or (one.tie_gap is not None and one.tie_gap < LARGEST_TIE) for one in drafted)


def print_report(report: dict[str, Any]) -> None:
    """Print tau by domain, the drafter beside the baselines, whether the texts were the target's own, and speeds."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120)
    for mode in report["conditions"]["modes"]:
        console.print(_table(report, mode))
        slots = report["results"][report["headline"]][mode]["all"]["slot_acceptance"]
        console.print("accepted by slot, earlier slots accepted: " + "  ".join(f"{share:.2f}" for share in slots))
    console.print(say_conditions(report["conditions"]) + "; intervals are 95%, by prompt")
    for line in say_losslessness(report):
        console.print(line)
    for speed in report["speeds"]:
        console.print(
            f"{speed['drafter']} {speed['mode']}: {speed['tokens_per_s']:.1f} tokens/s, {speed['speedup']:.2f} x plain, "
            f"{speed['target_frac']:.0%} of the time in the target"
        )
    path = Path(report["path"])
    console.print(f"wrote {path} and {path.with_suffix('.html')}")


def say_losslessness(report: dict[str, Any]) -> list[str]:
    """Say how many texts are the target's own, and what those that are not differ by."""
    if not report["texts"]:
        return ["a server's texts are not compared with plain decoding"]
    lines = [f"{report['same_text']} of {report['texts']} texts equal plain decoding token for token"]
    if report["lossless"] is None:
        conditions = report["conditions"]
        why = "bfloat16" if conditions["temperature"] == 0 else f"temperature {conditions['temperature']:g}"
        lines.append(f"at {why} they need not; float32 at temperature 0 shows losslessness")
        return lines
    for one in report["different"]:
        tie = one["tie_gap"] < LARGEST_TIE
        what = "a tie" if tie else "NOT a tie: decoding with this drafter changes the output"
        lines.append(
            f"{one['prompt']} ({one['drafter']}, {one['mode']}): logits differ by {one['tie_gap']:.2g}, {what}"
        )
    return lines


def run_folder(run: Path) -> Path:
    """Return the run that a step_N belongs to, or the folder itself."""
    return run.parent if run.name.startswith("step_") else run


def _open(folder: Path, asked: Asked) -> DFlashDrafter:
    from training.drafter_files import check_fits, open_drafter

    facts = asked.target.facts
    drafter = open_drafter(folder, facts.num_layers)
    check_fits(drafter, folder, facts.hidden_size, facts.vocab_size, facts.num_layers)
    return drafter


def _conversation(
    asked: Asked, proposers: dict[str, Proposer], prompt: Prompt, options: EvaluateOptions
) -> list[Measured]:
    """Measure a prompt and, where all turns are asked, what the user says after the target's own answers."""
    from training.evaluate import measure

    measured: list[Measured] = []
    turn: Prompt | None = prompt
    while turn is not None:
        found, reply_ids = measure(
            asked.target, proposers, turn, options.modes, asked.limits, options.seed, frozenset(options.baselines)
        )
        measured += found
        turn = asked.chat.next_turn(turn, reply_ids) if options.turns == "all" else None
    return measured


def _served(prompt: Prompt, found: dict[str, Any]) -> Measured:
    from training.acceptance import PromptRounds
    from training.evaluate import Measured

    rounds = PromptRounds(**found["rounds"])
    return Measured(
        prompt.id, prompt.domain, prompt.source, SERVED, "chain", rounds.gained_tokens + 1, rounds.accepted,
        0, rounds.cut, False, None, found["seconds"], 0.0,
    )  # fmt: skip


def _forget_rounds(report: dict[str, Any]) -> None:
    """Drop what needs rounds one by one, where the server told their number and sum only."""
    for mode in report["results"][SERVED].values():
        for found in (mode["all"], *mode["by_domain"].values(), *mode["by_source"].values()):
            found["slot_acceptance"], found["histogram"] = [], []


def _table(report: dict[str, Any], mode: str) -> Any:
    from rich.table import Table

    results, headline = report["results"], report["headline"]
    names = [name for name in results if mode in results[name]]
    table = Table(title=f"tau, tokens per target forward ({mode})")
    table.add_column("domain")
    for name in ("prompts", "rounds", headline, "95% interval", "per prompt", *(n for n in names if n != headline)):
        table.add_column(name, justify="right")
    ours = results[headline][mode]
    for domain in [*sorted(ours["by_domain"]), "all"]:

        def found(name: str, domain: str = domain) -> dict[str, Any]:
            place = results[name][mode]
            return place["all"] if domain == "all" else place["by_domain"][domain]

        one = found(headline)
        interval = "-" if one["tau_interval"] is None else "{:.2f} to {:.2f}".format(*one["tau_interval"])
        table.add_row(
            domain,
            str(one["num_prompts"]),
            str(one["num_rounds"]),
            f"{one['tau']:.2f}",
            interval,
            f"{one['tau_per_prompt']:.2f}",
            *(f"{found(name)['tau']:.2f}" for name in names if name != headline),
        )
    return table

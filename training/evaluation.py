"""The `drafter evaluate` command: what to decode, the journal that makes prompts resumable, and the table it ends with.

Light to import; torch and the models are loaded when the command runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from training.evaluate import Measured

UNTRAINED = "untrained"
"""Name of the baseline: the trained drafter's shape with fresh weights."""


class EvaluateOptions(BaseModel):
    """Decode held-out prompts with target and drafter: tokens per target forward, by domain."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: Path
    """A training run, or one of its step_N."""
    data: Path
    """The set whose held-out prompts are decoded."""
    target: str | None = None
    """Folder or hub id of the target; None takes the one that the set names."""
    modes: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ("chain",)
    """How proposals are verified: `chain`, or `tree:k` for a best-first tree of k nodes."""
    max_prompts_per_domain: int = Field(default=4, ge=1)
    """Most prompts of a domain, drawn by seed."""
    max_new_tokens: int = Field(default=96, ge=1)
    """Longest completion in tokens."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 decodes greedily, and the texts must be the same."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of target and drafter. Only float32 makes equal texts a fair demand."""
    seed: int = 0
    """Seeds the choice of prompts, sampling, and the untrained drafter."""
    out: Path | None = None
    """The report; None writes evaluation.json into the run."""
    trust_remote_code: bool = False
    """Run code that the target's repository carries."""


def evaluate(options: EvaluateOptions) -> dict[str, Any]:
    """Measure, write the report, and return it.

    Raises:
        ValueError: the run, the set or the target is not there, or they do not fit.
    """
    import torch
    from tqdm import tqdm
    from transformers import GenerationConfig

    from curation.arrow_sets import read_set_card
    from training.checkpoint import load_drafter
    from training.decode import Limits
    from training.drafter import DFlashDrafter
    from training.evaluate import heldout_prompts, measure
    from training.job import locate_target
    from training.target import Target

    for mode in options.modes:
        _check_mode(mode)
    named = read_set_card(options.data).get("target") or {}
    folder = locate_target(options.target or named.get("model"), None if options.target else named.get("revision"))
    prompts = heldout_prompts(options.data, options.max_prompts_per_domain, options.seed)
    dtype = getattr(torch, options.dtype)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_drafter(options.run).to(device, dtype).eval()
    target = Target.load(folder, dtype, device, options.trust_remote_code)
    untrained = DFlashDrafter(trained.config)
    untrained.init_weights(torch.Generator().manual_seed(options.seed))
    drafters = {"trained": trained, UNTRAINED: untrained.to(device, dtype).eval()}
    ends = GenerationConfig.from_pretrained(folder).eos_token_id
    limits = Limits(options.max_new_tokens, _end_tokens(ends), options.temperature)

    journal = _Journal(options, _digest(trained))
    left = [prompt for prompt in prompts if prompt.id not in journal.done]
    for prompt in tqdm(left, desc="prompts", unit="prompt", disable=None, file=sys.stderr):
        journal.add(prompt.id, list(measure(target, drafters, [prompt], options.modes, limits)))
    report = _report(options, folder, journal.measured(prompt.id for prompt in prompts))
    out = options.out or _run_folder(options.run) / "evaluation.json"
    temporary = out.with_suffix(".tmp")
    temporary.write_text(json.dumps(report, indent=2) + "\n")
    os.replace(temporary, out)
    journal.remove()
    return report | {"path": str(out)}


def print_report(report: dict[str, Any]) -> None:
    """Print tau by domain, trained beside untrained, and whether the texts were the target's own."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for mode in report["conditions"]["modes"]:
        table = Table(title=f"tau, tokens per target forward ({mode})")
        for name in ("domain", "prompts", "rounds", "trained", "per prompt", UNTRAINED):
            table.add_column(name, justify="left" if name == "domain" else "right")
        trained, untrained = report["by_domain"]["trained"][mode], report["by_domain"][UNTRAINED][mode]
        for domain in sorted(trained, key=lambda name: (name == "all", name)):
            ours, base = trained[domain], untrained[domain]
            counts = (str(ours["num_prompts"]), str(ours["num_rounds"]))
            table.add_row(domain, *counts, f"{ours['tau']:.2f}", f"{ours['tau_per_prompt']:.2f}", f"{base['tau']:.2f}")
        console.print(table)
    same, total = report["same_text"], report["texts"]
    console.print(f"{same} of {total} texts equal plain decoding token for token; wrote {report['path']}")
    for seconds in report["seconds"]:
        console.print("{drafter} {mode}: {tokens_per_s:.1f} tokens/s, {speedup:.2f} x plain".format(**seconds))


class _Journal:
    """Finished prompts, appended as they are done, so that a stopped evaluation goes on where it was."""

    def __init__(self, options: EvaluateOptions, weights: str) -> None:
        conditions = options.model_dump(mode="json", exclude={"out"}) | {"weights": weights}
        key = hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:16]
        self.path = _run_folder(options.run) / f".evaluation-{key}.jsonl"
        self.done: dict[str, list[dict[str, Any]]] = {}
        if self.path.is_file():
            whole = [line for line in self.path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
            self.path.write_bytes(b"".join(whole))
            self.done = {entry["prompt"]: entry["measured"] for entry in map(json.loads, whole)}

    def add(self, prompt_id: str, measured: list[Measured]) -> None:
        self.done[prompt_id] = [asdict(one) for one in measured]
        with self.path.open("a") as file:
            file.write(json.dumps({"prompt": prompt_id, "measured": self.done[prompt_id]}) + "\n")

    def measured(self, prompt_ids: Any) -> list[Measured]:
        from training.evaluate import Measured

        return [Measured(**one) for prompt_id in prompt_ids for one in self.done[prompt_id]]

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def _report(options: EvaluateOptions, target: str, measured: list[Measured]) -> dict[str, Any]:
    from training.evaluate import accepted_by_group

    groups: dict[str, Any] = {}
    for (drafter, mode, domain), found in accepted_by_group(measured, "domain").items():
        groups.setdefault(drafter, {}).setdefault(mode, {})[domain] = asdict(found)
    drafted = [one for one in measured if one.drafter != "plain"]
    return {
        "conditions": options.model_dump(mode="json") | {"target": target},
        "by_domain": groups,
        "texts": len(drafted),
        "same_text": sum(one.same_text for one in drafted),
        "different": sorted({one.prompt_id for one in drafted if not one.same_text}),
        "seconds": _speeds(measured),
        "prompts": [asdict(one) for one in measured],
    }


def _speeds(measured: list[Measured]) -> list[dict[str, Any]]:
    """Return tokens per second of every way of decoding, prompt processing left out, beside plain decoding's."""
    totals: dict[tuple[str, str], list[float]] = {}
    for one in measured:
        total = totals.setdefault((one.drafter, one.mode), [0.0, 0.0])
        total[0] += one.num_tokens - 1
        total[1] += one.seconds
    rates = {key: tokens / max(seconds, 1e-9) for key, (tokens, seconds) in totals.items()}
    plain = max(rates.pop(("plain", "plain")), 1e-9)
    return [
        {"drafter": drafter, "mode": mode, "tokens_per_s": rate, "speedup": rate / plain}
        for (drafter, mode), rate in rates.items()
    ]


def _check_mode(mode: str) -> None:
    kind, _, nodes = mode.partition(":")
    if mode != "chain" and not (kind == "tree" and nodes.isdigit() and int(nodes) > 0):
        raise ValueError(f"mode {mode!r}: expected `chain`, or `tree:k` with a number of nodes, e.g. tree:16")


def _digest(drafter: Any) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(drafter.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _run_folder(run: Path) -> Path:
    return run.parent if run.name.startswith("step_") else run


def _end_tokens(ids: int | list[int] | None) -> frozenset[int]:
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)

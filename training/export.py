"""The `drafter export` command: a drafter in the layout that engines load, checked from the disk before it is called done.

What fails silently elsewhere is the boundary: layer numbers off by one, a window that is dropped, an anchor slot read as a
proposal. So the written folder is read back as a stranger's would be, runs a block, and its logits must be those of the
drafter that went in. Light to import; torch is loaded when the command runs.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from training.durable import sync

if TYPE_CHECKING:
    from torch import Tensor

    from training.drafter import DFlashDrafter

Layout = Literal["zlab", "speculators"]

CHECK_CONTEXT = 48
"""Tokens of context before the block that is compared, more than a small sliding window."""

CARD = "README.md"


class ExportOptions(BaseModel):
    """Write a drafter in the layout that vLLM, SGLang, z-lab's code or speculators load, and check it from the disk."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    run: Path
    """A training run, one of its step_N, or a folder in either layout, which is converted."""
    out: Path
    """The folder to write; it must not exist."""
    layout: Layout = "zlab"
    """`zlab`: what z-lab publishes; vLLM and SGLang load it. `speculators`: the speculators library and vLLM load it."""
    target: str | None = None
    """Folder or hub id of the target; None takes the one that the run or the folder names."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Of the weights that are written."""


@dataclass(frozen=True)
class Exported:
    """A folder that was written and checked."""

    folder: Path
    layout: Layout
    num_parameters: int
    num_bytes: int
    rounding: float
    """Largest difference in logits between the drafter as it was and as written, by rounding to the dtype; relative to the
    largest logit."""
    same_top_frac: float
    """Share of slots whose likeliest token is the same after rounding."""
    launch: dict[str, str]
    """Command lines by engine."""


def export(options: ExportOptions) -> Exported:
    """Write the folder, read it back, compare, and put it into place.

    Raises:
        ValueError: there is no drafter, the folder exists, the layout cannot say what the drafter is, or the logits of what
            was written differ.
    """
    import torch
    from safetensors.torch import save_file

    from training.drafter_files import WEIGHTS, open_drafter, read_exported, weights_sha256

    if options.out.exists():
        raise ValueError(f"{options.out} exists; give --out a new folder")
    if not options.run.is_dir():
        raise ValueError(f"no drafter {options.run}; give a run, a step_N or an exported folder")
    target = options.target or named_target(options.run)
    facts = _target_facts(target, required=options.layout == "speculators")
    drafter = open_drafter(options.run, facts["num_layers"] if facts else None)
    dtype = getattr(torch, options.dtype)
    config = drafter.config.model_copy(update={"dtype": options.dtype})
    content = _config_json(config, options.layout, target, facts)
    temporary = options.out.with_name(f".{options.out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        (temporary / "config.json").write_text(json.dumps(content, indent=2) + "\n")
        weights = {name: weight.detach().to(dtype).contiguous() for name, weight in drafter.state_dict().items()}
        save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
        launch = launch_lines(options.out, options.layout, target, config.block_size)
        card = _card(options, drafter.config.block_size, target, weights_sha256(drafter), launch)
        (temporary / CARD).write_text(card)
        rounding, same_top = _compare(drafter, read_exported(temporary), dtype, facts["folder"] if facts else None)
        for path in temporary.iterdir():
            sync(path)
        os.rename(temporary, options.out)
        sync(options.out.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sizes = [weight.numel() for weight in weights.values()]
    num_bytes = (options.out / WEIGHTS).stat().st_size
    return Exported(options.out, options.layout, sum(sizes), num_bytes, rounding, same_top, launch)


def named_target(folder: Path) -> str | None:
    """Return the target that a run's card, or a folder in speculators' layout, names."""
    from training.speculators_layout import verifier_of

    for path in (folder / "run.json", folder.parent / "run.json"):
        if path.is_file():
            return json.loads(path.read_text()).get("target")
    if (folder / "config.json").is_file():
        return verifier_of(json.loads((folder / "config.json").read_text()))
    return None


def launch_lines(folder: Path, layout: Layout, target: str | None, block_size: int) -> dict[str, str]:
    """Return the command lines that serve a target with an exported drafter, by engine.

    The anchor's slot proposes nothing: vLLM counts block_size - 1 proposals, SGLang the tokens of a verification, block_size.
    """
    model, drafter = shlex.quote(target or "TARGET"), str(folder.resolve())
    settings = json.dumps({"method": "dflash", "model": drafter, "num_speculative_tokens": block_size - 1})
    lines = {"vLLM": f"vllm serve {model} --speculative-config {shlex.quote(settings)}"}
    if layout == "zlab":
        lines["SGLang"] = (
            f"python -m sglang.launch_server --model-path {model} --speculative-algorithm DFLASH "
            f"--speculative-draft-model-path {shlex.quote(drafter)} --speculative-num-draft-tokens {block_size}"
        )
    return lines


def print_exported(exported: Exported) -> None:
    """Say what was written, that it was checked, and how to serve it."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    console.print(
        f"{exported.folder}: {exported.layout} layout, {exported.num_parameters:,} parameters, {exported.num_bytes / 2**20:.1f} MiB"
    )
    console.print(
        "read back from the disk: logits of a block are those of the drafter in this dtype, bit by bit; against float32 "
        f"they differ by {exported.rounding:.1e} of the largest, {exported.same_top_frac:.1%} of the likeliest tokens are the same"
    )
    for engine, line in exported.launch.items():
        console.print(f"\n{engine}:\n  {line}", markup=False)


def _config_json(config: Any, layout: Layout, target: str | None, facts: dict[str, Any] | None) -> dict[str, Any]:
    from training.speculators_layout import config_to_speculators

    if layout == "zlab":
        return config.to_json()
    assert target is not None and facts is not None
    return config_to_speculators(config, target, facts["architectures"])


def _target_facts(target: str | None, required: bool) -> dict[str, Any] | None:
    """Return folder, architectures and layers of the target; None where it is not needed and not within reach."""
    from training.job import locate_target

    if target is None and not required:
        return None
    if target is None:
        raise ValueError("the speculators layout names its verifier: give the target's folder or hub id as --target")
    try:
        folder = Path(locate_target(target, None))
    except ValueError:
        if required:
            raise
        return None
    found = json.loads((folder / "config.json").read_text())
    text = found.get("text_config") or found
    return {
        "folder": folder,
        "architectures": found.get("architectures") or [],
        "num_layers": text["num_hidden_layers"],
    }


def _compare(original: DFlashDrafter, written: DFlashDrafter, dtype: Any, target: Path | None) -> tuple[float, float]:
    """Compare the logits of one block; return the relative rounding, and the share of slots with the same likeliest token.

    Raises:
        ValueError: what was written is another drafter.
    """
    import torch

    from training.drafter import DFlashDrafter

    if written.config.model_dump(exclude={"dtype"}) != original.config.model_dump(exclude={"dtype"}):
        raise ValueError(f"the configuration that was written reads back as another: {written.config}")
    rounded = DFlashDrafter(original.config)
    rounded.load_state_dict({name: weight.to(dtype).float() for name, weight in original.state_dict().items()})
    embed_VH, head_VH = _ends(original, target)
    expected, found, wide = (
        _block_logits(one, embed_VH, head_VH) for one in (rounded.eval(), written, original.float())
    )
    if not torch.equal(expected, found):
        raise ValueError(
            f"logits of what was written differ by {float((expected - found).abs().max()):.3g} from the drafter's: nothing was exported"
        )
    top_same = (found.argmax(-1) == wide.argmax(-1)).float().mean()
    return float((found - wide).abs().max() / wide.abs().max()), float(top_same)


def _block_logits(drafter: DFlashDrafter, embed_VH: Tensor, head_VH: Tensor) -> Tensor:
    """Return the logits [S, V] of a block after random context, the same for every drafter of this shape."""
    import torch

    config, dice = drafter.config, torch.Generator().manual_seed(0)
    features = torch.randn(CHECK_CONTEXT, len(config.target_layer_ids) * config.hidden_size, generator=dice)
    ids = torch.full((config.block_size,), config.mask_token_id)
    ids[0] = int(torch.randint(config.vocab_size, (), generator=dice))
    cache = drafter.empty_cache()
    with torch.no_grad():
        drafter.extend(cache, features)
        return drafter.draft(cache, embed_VH[ids])[1:] @ head_VH.T


def _ends(drafter: DFlashDrafter, target: Path | None) -> tuple[Tensor, Tensor]:
    """Return embedding and lm_head of the target, or random ones where it is not within reach."""
    import torch

    from training.target_ends import read_ends

    if target is not None:
        embed, head = read_ends(target)
        return embed.float(), head.float()
    dice = torch.Generator().manual_seed(1)
    random = torch.randn(drafter.config.vocab_size, drafter.config.hidden_size, generator=dice)
    return random, random


def _card(options: ExportOptions, block_size: int, target: str | None, weights: str, launch: dict[str, str]) -> str:
    """Return the folder's README: where it comes from, and how it is served."""
    origin = {"drafter": str(options.run), "weights_sha256": weights, "target": target, "block_size": block_size}
    lines = [
        "# A DFlash drafter",
        "",
        "Made by Draftmill from:",
        "",
        "```json",
        json.dumps(origin, indent=2),
        "```",
        "",
    ]
    for engine, line in launch.items():
        lines += [f"## {engine}", "", "```", line, "```", ""]
    if options.layout == "zlab":
        lines += [
            "transformers' `AutoModel` needs z-lab's `dflash.py` (github.com/z-lab/dflash) in this folder; vLLM and SGLang do not.",
            "",
        ]
    return "\n".join(lines)

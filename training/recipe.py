"""The recipe: every knob of a training run, one default each, read from YAML and overridden on the command line.

Precedence: the defaults here, then the recipe file, then the command line (`--optimizer.learning-rate 3e-4`). Validators
check and never rewrite. Light to import: `train --help` is generated from these models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from training.drafter_config import DrafterSettings
from training.settings import BlockSettings, LossSettings, Settings

SHIPPED = Path(__file__).parent.parent / "recipes"
"""The folder of the recipes that ship with Draftmill; a bare file name that is not in the working directory is sought here."""


class BatchSettings(Settings):
    """How rows become micro-batches, and micro-batches a step."""

    tokens: int = Field(default=8192, ge=16)
    """Cost of a micro-batch in token equivalents, at most, on average. Four or more rows each make even batches."""
    per_step: int = Field(default=8, ge=1)
    """Micro-batches of an optimiser step over all ranks; a rank's share of it beyond one is gradient accumulation."""
    max_length: int = Field(default=3072, ge=16)
    """Tokens of a row; longer rows are cut."""
    buckets: int = Field(default=8, ge=1)
    """Length buckets of equal total cost, interleaved by proportional stride."""
    prefetch: int = Field(default=4, ge=1)
    """Micro-batches built ahead of the step that needs them."""

    @model_validator(mode="after")
    def _rows_fit(self) -> BatchSettings:
        if self.max_length > self.tokens:
            raise ValueError(f"max_length {self.max_length} exceeds tokens {self.tokens}: a row must fit a micro-batch")
        return self


class OptimizerSettings(Settings):
    """AdamW on float32 masters."""

    learning_rate: float = Field(default=6e-4, gt=0)
    """Peak."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of matrices; norms are exempt."""
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """After the warm-up: cosine to `final_frac`, constant with a linear decay at the end (wsd), or constant."""
    warmup_frac: float = Field(default=0.04, ge=0, lt=1)
    """Part of the steps over which the rate rises from zero."""
    decay_frac: float = Field(default=0.2, gt=0, le=1)
    """Part of the steps over which wsd decays."""
    final_frac: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end, as a fraction of the peak."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Gradient norm above which gradients are scaled down."""
    ema_decay: float | None = Field(default=None, gt=0, lt=1)
    """Keep an exponential moving average of the weights, decayed by this much a step; None keeps none."""


class ComputeSettings(Settings):
    """How the arithmetic is done."""

    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Of the target and of the drafter's matrix products; masters stay float32. `auto`: bfloat16 on GPUs, float32 on a CPU."""
    attention: Literal["auto", "reference", "structured", "flex"] = "auto"
    """Attention backend; `auto` takes flex attention on GPUs and the structured path on a CPU."""
    feature_cache_gib: float = Field(default=0.0, ge=0)
    """Memory of a colocated rank for features of documents seen before, on its own device. For sets small enough to fit; each
    document is then run by itself. 0 remembers nothing."""
    recompute_layers: bool = False
    """Recompute a layer's activations in the backward pass (activation checkpointing)."""
    compile: bool = False
    """Compile the drafter's layers with torch.compile."""


class PlacementSettings(Settings):
    """Which process does what."""

    processes: int | None = Field(default=None, ge=1)
    """Processes on this machine; None: one per visible GPU, or one on a CPU. Under torchrun its own count holds."""
    mode: Literal["colocated", "split"] = "colocated"
    """`colocated`: every rank holds the target. `split`: the first `target_ranks` run the target and send features to the rest."""
    target_ranks: int = Field(default=1, ge=1)
    """Ranks that run the target, in split mode."""
    shard: Literal["ddp", "fsdp"] = "ddp"
    """`ddp`: every drafter rank holds all masters and moments. `fsdp` (FSDP2): they are sharded over the drafter ranks."""


class CheckpointSettings(Settings):
    """When `step_N/checkpoint.pt` is written, besides the end, SIGTERM and Ctrl-C."""

    every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""
    keep_every: int | None = Field(default=None, ge=1)
    """Checkpoints at multiples of this many steps are kept for good."""


class HeldoutSettings(Settings):
    """Tau on held-out rows, by pointer walk."""

    every: int = Field(default=500, ge=1)
    """Steps between measurements; the end is always measured."""
    rows: int = Field(default=256, ge=0)
    """Held-out rows that are walked; 0 measures nothing."""


class GuardSettings(Settings):
    """What happens when a step goes wrong."""

    spike_factor: float = Field(default=4.0, gt=1)
    """A loss above this many times its running mean is a spike; its step is not applied."""
    max_skips: int = Field(default=10, ge=0)
    """Steps that may be left out (not-a-number or spike) before the run stops."""


class LoggingSettings(Settings):
    """What is written down."""

    every: int = Field(default=10, ge=1)
    """Steps between lines of metrics.jsonl."""
    sinks: tuple[Literal["wandb", "tensorboard", "trackio"], ...] = ()
    """Where metrics go besides metrics.jsonl."""
    project: str = "draftmill"
    """Project name at wandb and trackio."""
    tree_blocks: int = Field(default=32, ge=0)
    """Blocks per micro-batch whose likeliest tokens are kept for the streaks of trees."""


class Recipe(Settings):
    """A training run."""

    drafter: DrafterSettings = DrafterSettings()
    blocks: BlockSettings = BlockSettings()
    loss: LossSettings = LossSettings()
    batches: BatchSettings = BatchSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    compute: ComputeSettings = ComputeSettings()
    placement: PlacementSettings = PlacementSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    heldout: HeldoutSettings = HeldoutSettings()
    guard: GuardSettings = GuardSettings()
    logging: LoggingSettings = LoggingSettings()
    epochs: float = Field(default=6.0, gt=0)
    """Times that every row is trained on."""
    max_steps: int | None = Field(default=None, ge=1)
    """Optimiser steps at most; the learning rate ends with whichever of this and `epochs` comes first."""
    max_minutes: float | None = Field(default=None, gt=0)
    """Minutes after which the run writes a checkpoint and ends; running it again goes on."""
    seed: int = Field(default=0, ge=0)
    """Seeds the weights, the order of data, anchors and noise."""


def load(path: str | Path) -> Recipe:
    """Read and check a recipe: a YAML file, or the bare name of one that ships with Draftmill.

    Raises:
        ValueError: no such file, not YAML, or not a recipe; one line that says what to change.
    """
    found = find(path)
    try:
        document = yaml.safe_load(found.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{found}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{found}: expected sections such as `drafter` and `batches`, found {type(document).__name__}")
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{found}: {say_problems(error)}") from error


def find(path: str | Path) -> Path:
    """Return the recipe file that `path` names: as given, or by bare name among the shipped ones.

    Raises:
        ValueError: neither exists; names the shipped recipes.
    """
    given = Path(path)
    if given.is_file():
        return given
    shipped = SHIPPED / given.name
    if given.name == str(given) and shipped.is_file():
        return shipped
    names = ", ".join(sorted(file.name for file in SHIPPED.glob("*.yaml")))
    raise ValueError(f"no recipe {str(given)!r} here or among the shipped ones ({names})")


def differences(one: dict[str, Any], other: dict[str, Any], prefix: str = "") -> list[str]:
    """Return `section.field: one -> other` for every field in which two resolved recipes differ."""
    lines: list[str] = []
    for name in sorted(one.keys() | other.keys()):
        left, right = one.get(name), other.get(name)
        if isinstance(left, dict) and isinstance(right, dict):
            lines += differences(left, right, f"{prefix}{name}.")
        elif left != right:
            lines.append(f"{prefix}{name}: {left} -> {right}")
    return lines


def say_problems(error: ValidationError, most: int = 3) -> str:
    """Say the first few problems of a validation error on one line, each with its place."""
    problems = error.errors()
    said = [
        (".".join(str(part) for part in problem["loc"]) + ": " if problem["loc"] else "")
        + problem["msg"].removeprefix("Value error, ")
        for problem in problems[:most]
    ]
    more = f" (and {len(problems) - most} more)" if len(problems) > most else ""
    return "; ".join(said) + more

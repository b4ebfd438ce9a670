"""What the commands of `curate` that make something are given. Light: the command line imports it to show its help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field


class BuildOptions(BaseModel):
    """Build a set to train on from completions: filter, deduplicate, decontaminate, balance, tokenise, split, write."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input: Path = Path("completions_raw")
    """Folder of completions."""
    out: Path | None = None
    """Folder of the set; None takes the next free tokenized_vN in the working directory."""
    balance: bool = False
    """Aim at the target shares; without, the natural mix is kept."""
    recipe: Path | None = None
    """Settings in YAML; None takes the defaults."""
    set: tuple[str, ...] = ()
    """Single settings over the recipe, by dotted name, e.g. dedupe.threshold=0.7."""
    domains: str | None = None
    """Target shares, e.g. code=20,math=30; None takes the manifest's."""
    manifest: Path | None = None
    """Manifest for target shares, domains, licences and the target; None takes the one in the input's run.json."""
    tokenizer: str | None = None
    """Folder or hub id of the target, for completions without token ids; None takes the manifest's."""
    max_seq_len: int | None = None
    """Longest document in tokens; None takes the recipe's."""
    shards: int | None = None
    """Arrow files of the set; None takes the recipe's (45)."""
    heldout_frac: float | None = None
    """Fraction of each domain that is held out; None takes the recipe's (0.02)."""
    seed: int | None = None
    """Seeds balance, held-out choice and order; None takes the recipe's."""
    workers: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1)
    """Processes, or Ray actors. The set does not depend on it."""
    pool: Literal["processes", "ray"] = "processes"
    """What reads and tokenises shards: processes here, or Ray Data on the cluster that RAY_ADDRESS names."""
    cache: Path | None = None
    """Folder for what was read from the shards; None keeps it beside them."""


class ExportOptions(BaseModel):
    """Write a set in the shape that another trainer reads."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: Annotated[Path, tyro.conf.Positional]
    """The set."""
    to: Literal["specforge", "specforge_tokens", "openai", "sharegpt"] = "specforge"
    """`specforge`: id and conversations. `specforge_tokens`: id, input_ids, loss_mask. `openai`: messages. `sharegpt`: id
    and conversations of from and value."""
    out: Path | None = None
    """Folder to write; None takes the set's name with the shape's behind it."""
    input: Path | None = None
    """Completions that the set was built from, for the shapes of text; None takes the folder that set.json names."""
    cache: Path | None = None
    """Folder for what was read from the shards; None keeps it beside them."""


class PlanOptions(BaseModel):
    """Plan what to generate next: which domains and sources, how much, at what cost, in which order."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    profile: Path = Path("completions_raw")
    """Folder of completions, or a profile.json."""
    manifest: Path | None = None
    """Manifest to grow; None takes the one in run.json."""
    evaluation: Path | None = None
    """evaluation.json of a drafter, for the order by accepted tokens gained."""
    domains: str | None = None
    """Target shares, e.g. code=20,math=30; None takes the manifest's."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Size of the balanced set to plan for; None takes the smallest that has room for every token at hand."""
    tokens_per_second: float | None = Field(default=None, gt=0)
    """Completion tokens per second of generation; None takes what status.json measured."""
    price_per_hour: float | None = Field(default=None, ge=0)
    """Price of an hour of generation at that speed."""
    gain_per_doubling: float = Field(default=0.25, gt=0)
    """Assumed gain in tokens per target forward from doubling a domain's tokens; scales the gains that are printed."""
    allow_licenses: tuple[str, ...] = ()
    """Licences to allow beyond the manifest's."""
    out: Path | None = None
    """The next manifest; None puts NAME_next.yaml beside the manifest that was named, else here."""
    document: Path = Path("DATA_EXPANSION.md")
    """Document whose marked section is rewritten."""

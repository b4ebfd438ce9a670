"""The manifest: which target model answers which mix of prompts, and how it samples.

A manifest is a YAML file that a person writes and version-controls. It is read into frozen models that reject
unknown fields, so a misspelt knob is an error and never a silent default. This module is light (pydantic and
PyYAML): `curation` imports it to read the target mix without pulling in an engine.

Validators check; none rewrites what the person wrote. The resolved manifest is stored beside everything made from it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

SHIPPED = Path(__file__).parent
"""The folder of the mixes that ship with Draftmill; a bare file name that is not in the working directory is sought here."""

RowFormat = Literal[
    "auto",
    "messages",
    "sharegpt",
    "alpaca",
    "prompt",
    "turns",
    "llama_nemotron",
    "nemotron",
    "nemo_gym",
    "bfcl",
]
"""How a source's rows hold their prompts; `auto` decides from the columns of the first rows and says what it decided."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Sampling(_Model):
    """Sampling parameters. A field left out takes the value here, never an engine's or a model's hidden default."""

    temperature: float = Field(default=0.8, ge=0)
    """Softmax temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus probability mass."""
    top_k: int = Field(default=-1, ge=-1)
    """Tokens considered per step; -1 or 0 considers all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Least probability relative to the likeliest token."""
    max_tokens: int = Field(default=2048, ge=1)
    """Most tokens to generate, thinking included."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Penalty on tokens seen in prompt and output; 1.0 is none. It bends the text a drafter learns from: prefer 1.0."""
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    """Penalty on tokens seen in the output."""
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    """Penalty on tokens by their count in the output."""
    stop: tuple[str, ...] = ()
    """Strings that end a generation, besides the model's own end tokens."""


class SamplingOverride(_Model):
    """What one source changes in the manifest's sampling; None keeps the manifest's value."""

    temperature: float | None = Field(default=None, ge=0)
    """Softmax temperature; 0 is greedy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Nucleus probability mass."""
    top_k: int | None = Field(default=None, ge=-1)
    """Tokens considered per step; -1 or 0 considers all."""
    min_p: float | None = Field(default=None, ge=0, le=1)
    """Least probability relative to the likeliest token."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Most tokens to generate, thinking included."""
    repetition_penalty: float | None = Field(default=None, gt=0)
    """Penalty on tokens seen in prompt and output; 1.0 is none."""
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Penalty on tokens seen in the output."""
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    """Penalty on tokens by their count in the output."""
    stop: tuple[str, ...] | None = None
    """Strings that end a generation, besides the model's own end tokens."""

    def over(self, sampling: Sampling) -> Sampling:
        """Return `sampling` with this source's overrides applied."""
        return sampling.model_copy(update=self.model_dump(exclude_none=True))


class Target(_Model):
    """The model whose text the drafter will learn to predict."""

    model: str
    """Hub id, or a local folder (relative to the working directory, then to the manifest's folder)."""
    revision: str | None = None
    """Commit of the hub repository. Pin it: a moved tag makes a different target."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Weights and activations."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Context length in tokens, prompt and completion; None takes the model's."""
    chat_template: str | None = None
    """Path of a Jinja chat template that replaces the tokenizer's."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template, e.g. `enable_thinking: false`."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Engine settings passed through as they are (any of vLLM's AsyncEngineArgs, e.g. `tensor_parallel_size: 8`)."""
    trust_remote_code: bool = False
    """Run code that the model repository carries. Off unless you trust its authors with your machine."""


class HubLocation(_Model):
    """A data set on the Hugging Face hub."""

    repo: str
    """Repository id, `owner/name`."""
    config: str | None = None
    """Configuration (subset) name; None takes the only or default one."""
    split: str | tuple[str, ...] = "train"
    """Split, or several that are read as one."""
    revision: str | None = None
    """Commit. Pin it: an unpinned source is a warning in the plan and not reproducible."""
    data_files: tuple[str, ...] = ()
    """Globs of files inside the repository that are read directly (parquet, JSONL), where its loader casts fail."""
    gated: bool = False
    """Whether access must be requested on the hub first; checked before an engine starts."""


class Filters(_Model):
    """Which of a source's rows may be asked. Every dropped row is counted by reason."""

    min_prompt_chars: int = Field(default=1, ge=0)
    """Shortest final user turn, in characters."""
    max_prompt_chars: int | None = Field(default=None, ge=1)
    """Longest rendered conversation, in characters."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest rendered prompt, in target tokens; None leaves what the context minus `max_tokens` allows."""
    where: dict[str, tuple[str | int | bool, ...]] = Field(default_factory=dict)
    """Columns and the values they may have, e.g. `{reasoning: ["off"], used_in_training: ["yes"]}`."""
    licenses: tuple[str, ...] | None = None
    """Row-level licences that are allowed, where rows carry a `license` column; None allows all."""
    placeholders: Literal["drop", "keep"] = "drop"
    """What happens to prompts with an unfilled `{{name}}` outside code; `keep` them where prompts are about templates."""


class Source(_Model):
    """One origin of prompts, and its share of the mix."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")
    """Name in shards, profiles and reports."""
    hub: HubLocation | None = None
    """Where the rows are: a hub data set ..."""
    files: str | tuple[str, ...] | None = None
    """... or globs of local files (.jsonl, .json, .parquet, .csv, .tsv, and .gz/.zst of the text ones), relative to the manifest's folder."""
    format: RowFormat = "auto"
    """How rows hold their prompts."""
    column: str | None = None
    """The prompt's column for `format: prompt` (and of the conversation for `messages`, `sharegpt`, `turns`); a number for files without a header."""
    domain: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Domain of every row of this source, e.g. code, math, science, chat, writing, tool_use, multilingual."""
    license: str
    """SPDX identifier where there is one, e.g. CC-BY-4.0, Apache-2.0, MIT."""
    weight: float | None = Field(default=None, gt=0)
    """Relative share of `total`; weights are normalised over the sources that have one."""
    count: int | None = Field(default=None, ge=0)
    """Exact number of prompts, instead of a weight."""
    cap: int | None = Field(default=None, ge=1)
    """Most prompts to take, whatever the weight says."""
    filters: Filters = Filters()
    """Which rows may be asked."""
    sampling: SamplingOverride = SamplingOverride()
    """What this source changes in the manifest's sampling."""
    thinking: bool | float | None = None
    """Thinking on, off, or the fraction of prompts with it on; None leaves it to `chat_template_kwargs`."""
    turns: Literal["first", "last", "all"] = "first"
    """`first`: ask the first user turn. `last`: keep the source's history and ask for its last answer. `all`: regenerate every assistant turn on the target's own history."""
    rollouts: int = Field(default=1, ge=1)
    """Generations per prompt, each with its own seed."""
    system: Literal["keep", "drop"] = "keep"
    """What happens to a source's non-empty system messages; empty ones are always dropped."""
    notes: str | None = None
    """For people: gating, licence caveats, what is known of contamination."""

    @model_validator(mode="after")
    def _one_place_one_share(self) -> Source:
        if (self.hub is None) == (self.files is None):
            raise ValueError(f"source {self.name!r}: give exactly one of `hub` and `files`")
        if (self.weight is None) == (self.count is None):
            raise ValueError(f"source {self.name!r}: give exactly one of `weight` and `count`")
        if isinstance(self.thinking, float) and not 0 <= self.thinking <= 1:
            raise ValueError(f"source {self.name!r}: `thinking` is true, false or a fraction in [0, 1]")
        if self.format == "prompt" and self.column is None:
            raise ValueError(f"source {self.name!r}: `format: prompt` needs `column`")
        return self


class Manifest(_Model):
    """A weighted mix of prompt sources, the target that answers it, and the mix it should become."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")
    """Name of the mix."""
    description: str = ""
    """What it is for."""
    target: Target
    """The model that answers."""
    sampling: Sampling = Sampling()
    """How it samples, unless a source says otherwise."""
    sources: tuple[Source, ...] = Field(min_length=1)
    """Where prompts come from, in the order that names a prompt found in two of them."""
    total: int | None = Field(default=None, ge=1)
    """Prompts to take over all weighted sources; needed as soon as a source has a weight (or `total_tokens` is given)."""
    total_tokens: int | None = Field(default=None, ge=1)
    """Expected completion tokens to take over all weighted sources, instead of `total`; divided by `expected_tokens`."""
    expected_tokens: int = Field(default=1024, ge=1)
    """Completion tokens expected per prompt, for planning before any speed or length was measured."""
    seed: int = 0
    """Seeds selection and sampling."""
    shard_rows: int = Field(default=500, ge=1)
    """Rows per published shard."""
    domains: dict[str, float] = Field(default_factory=dict)
    """Target share of each domain by tokens, which `curate build --balance` aims for; normalised."""
    languages: dict[str, float] = Field(default_factory=dict)
    """Target share of each language (ISO 639-1) by tokens, a second axis; empty leaves language alone."""
    licenses: tuple[str, ...] = ()
    """Licences that sources may have; empty allows all. A source outside it stops the run before any work."""
    deduplicate: bool = True
    """Ask a prompt once even if two sources hold it (first source in order wins); rollouts do not count as repeats."""

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        names = [source.name for source in self.sources]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"source names must be unique; repeated: {', '.join(repeated)}")
        weighted = [source.name for source in self.sources if source.weight is not None]
        if self.total is not None and self.total_tokens is not None:
            raise ValueError("give `total` (prompts) or `total_tokens`, not both")
        if weighted and self.total is None and self.total_tokens is None:
            raise ValueError(f"sources with a `weight` ({', '.join(weighted)}) need `total` or `total_tokens`")
        if self.total_tokens is not None and self.total_tokens < self.expected_tokens:
            raise ValueError(
                f"`total_tokens` {self.total_tokens} is less than one answer (`expected_tokens` {self.expected_tokens})"
            )
        if any(share < 0 for share in self.domains.values()) or (self.domains and sum(self.domains.values()) <= 0):
            raise ValueError("`domains` are shares: none negative, and not all zero")
        if self.licenses:
            outside = [f"{s.name} ({s.license})" for s in self.sources if s.license not in self.licenses]
            if outside:
                raise ValueError(f"licences outside `licenses`: {', '.join(outside)}; allow them or drop the sources")
        return self


def load(path: str | Path) -> tuple[Manifest, Path]:
    """Read and check a manifest.

    Args:
        path: a file, or the bare name of a mix that ships with Draftmill (`nemotron_mix.yaml`).

    Returns:
        the manifest, and the file it was read from (its folder anchors relative `files` globs).

    Raises:
        ValueError: no such file, not YAML, or not a manifest; one line that says what to change.
    """
    found = find(path)
    try:
        document = yaml.safe_load(found.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{found}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{found}: expected a mapping with `target` and `sources`, found {type(document).__name__}")
    try:
        return Manifest.model_validate(document), found
    except ValidationError as error:
        raise ValueError(f"{found}: {first_problems(error)}") from error


def find(path: str | Path) -> Path:
    """Return the manifest file that `path` names: as given, or by bare name among the shipped ones.

    Raises:
        ValueError: neither exists; names the shipped mixes.
    """
    given = Path(path)
    if given.is_file():
        return given.resolve()
    shipped = SHIPPED / given.name
    if given.name == str(given) and shipped.is_file():
        return shipped
    names = ", ".join(sorted(file.name for file in SHIPPED.glob("*.yaml")))
    raise ValueError(f"no manifest {str(given)!r} here or among the shipped ones ({names})")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a manifest, for editors; `manifest.schema.json` holds it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Manifest.model_json_schema()}


def first_problems(error: ValidationError, most: int = 3) -> str:
    """Return the first few problems of a validation error on one line, each with its place."""
    problems = error.errors()
    said = [
        (".".join(str(part) for part in problem["loc"]) + ": " if problem["loc"] else "")
        + problem["msg"].removeprefix("Value error, ")
        for problem in problems[:most]
    ]
    more = f" (and {len(problems) - most} more)" if len(problems) > most else ""
    return "; ".join(said) + more

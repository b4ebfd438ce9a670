"""The recipe: every setting of a build, as YAML that a person writes and as JSON that the set carries.

Each step declares its own settings beside itself; the recipe composes them and adds what belongs to none: the target
mix, the number of shards, the seed. Precedence is model default, then file, then command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from curation.balance import BalanceSettings
from curation.decontaminate import DecontaminateSettings
from curation.dedupe import DedupeSettings
from curation.facts import ReadingSettings
from curation.filters import FilterSettings
from curation.heldout import HeldoutSettings
from curation.tokenization import TokenizationSettings
from manifests.schema import first_problems

SHIPPED = Path(__file__).parent.parent / "recipes"
"""The folder of the recipes in a source checkout; a bare name that is not in the working directory is sought here."""


class Recipe(BaseModel):
    """How completions become a set."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    reading: ReadingSettings = ReadingSettings()
    """What is found out about a row while it is read."""
    filters: FilterSettings = FilterSettings()
    """Which rows are unusable or unwanted."""
    dedupe: DedupeSettings = DedupeSettings()
    """Which rows repeat others."""
    decontaminate: DecontaminateSettings = DecontaminateSettings()
    """Which evaluation sets must not be learned."""
    tokenization: TokenizationSettings = TokenizationSettings()
    """How rows become token ids, and how long they may be."""
    heldout: HeldoutSettings = HeldoutSettings()
    """How many rows are set apart for evaluation."""
    balanced: bool = False
    """Aim at target shares; without, the natural mix is kept."""
    balance: BalanceSettings = BalanceSettings()
    """What a share is a share of, and what gives when it cannot be reached."""
    domains: dict[str, float] = Field(default_factory=dict)
    """Target share of each domain; empty takes the manifest's, from `run.json` beside the completions or from `--manifest`."""
    languages: dict[str, float] = Field(default_factory=dict)
    """Target share of each language, a second axis; empty takes the manifest's."""
    num_shards: int = Field(default=45, ge=1, le=99_999)
    """Arrow files of the set."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seeds the choice of held-out rows and the order of the set."""

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        for name, shares in (("domains", self.domains), ("languages", self.languages)):
            if any(share < 0 for share in shares.values()) or (shares and sum(shares.values()) <= 0):
                raise ValueError(f"`{name}` are shares: none negative, and not all zero")
        if self.reading.sign != "prompt":
            raise ValueError("`reading.sign` must be prompt in a build: held-out rows are kept apart by their prompts")
        return self


def load(path: Path | None, overrides: dict[str, Any]) -> Recipe:
    """Return the recipe in a YAML file (None: all defaults) with `overrides` applied.

    Args:
        path: a file, or the bare name of one in `recipes/`.
        overrides: by dotted name, e.g. `{"dedupe.threshold": 0.7}`; a nested mapping is replaced whole.

    Raises:
        ValueError: no such file, not YAML, or not a recipe; one line that says what to change.
    """
    document: dict[str, Any] = {} if path is None else _read(path)
    for dotted, value in overrides.items():
        _set(document, dotted, value)
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        where = "recipe" if path is None else str(path)
        raise ValueError(f"{where}: {first_problems(error)}") from error


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return `("dedupe.threshold=0.7", ...)` as overrides; values are YAML.

    Raises:
        ValueError: an assignment without `=`, or a value that is not YAML.
    """
    overrides = {}
    for assignment in assignments:
        dotted, equals, value = assignment.partition("=")
        if not equals or not dotted.strip():
            raise ValueError(f"--set {assignment!r}: expected name=value, e.g. --set dedupe.threshold=0.7")
        try:
            overrides[dotted.strip()] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {assignment!r}: the value is not YAML") from error
    return overrides


def parse_shares(text: str) -> dict[str, float]:
    """Return `"code=20,math=30"` as shares by name.

    Raises:
        ValueError: not of that form.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        try:
            shares[name.strip()] = float(share)
        except ValueError as error:
            raise ValueError(f"--domains {text!r}: expected name=share pairs, e.g. code=20,math=30") from error
    return shares


def _read(path: Path) -> dict[str, Any]:
    found = path if path.is_file() else SHIPPED / path.name
    if not found.is_file() or (found != path and path.name != str(path)):
        names = ", ".join(sorted(file.name for file in SHIPPED.glob("build_*.yaml"))) or "none"
        raise ValueError(f"no recipe {str(path)!r} here or in recipes/ ({names})")
    try:
        document = yaml.safe_load(found.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{found}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{found}: expected a mapping of settings, found {type(document).__name__}")
    return document


def _set(document: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        inner = document.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ValueError(f"recipe: {dotted}: {parent} is not a group of settings")
        document = inner
    document[last] = value

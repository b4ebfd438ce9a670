"""Filters: rows that no drafter should learn from, each dropped for the first reason that holds.

A filter asks the facts of a row (lengths, finish reason, language, licence, flags) and not its text: what is wrong with a
text was found once, when it was read. (One that is off by default, language mismatch, does read.) Thresholds live in `FilterSettings`; the order of reasons is the order of
`_reasons`, from what makes a row unusable to what makes it unwanted, so that counts by reason compare across builds.

Defaults keep whatever is the target's own voice. A completion cut off by its token budget is kept: every token in it
was still sampled by the target, only the end is missing. Refusals are kept as well, being what the target says.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from curation.facts import UNDETERMINED, Flag
from curation.funnel import Drop, Outcome, Texts

_COLUMNS = (
    "source",
    "license",
    "language",
    "prompt_chars",
    "prompt_tokens",
    "completion_tokens",
    "finish_reason",
    "flags",
)


class FilterSettings(BaseModel):
    """Which rows a build drops before it compares any."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    drop_finish_reasons: tuple[str, ...] = ("repetition", "error", "abort", "cancelled", "content_filter")
    """Finish reasons whose rows are dropped. Add `length` to drop completions that ran out of tokens."""
    min_prompt_chars: int = Field(default=1, ge=0)
    """Shortest prompt, in characters."""
    max_prompt_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt, in target tokens; None sets no limit."""
    min_completion_tokens: int = Field(default=2, ge=0)
    """Shortest completion, in target tokens: a drafter needs an anchor and one token to predict."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """Longest completion, reasoning included, in target tokens; None sets no limit."""
    max_total_tokens: int | None = Field(default=None, ge=1)
    """Longest prompt and completion together, in target tokens; None leaves that to truncation."""
    loops: bool = True
    """Drop completions that repeat themselves."""
    unclosed_thinking: bool = True
    """Drop rows whose thinking is opened and never closed, or closed and never opened."""
    mojibake: bool = True
    """Drop text that was decoded with the wrong code page."""
    control_tokens: bool = True
    """Drop rows that carry chat-template markup as text: a tokenizer would read it as turns."""
    repaired: bool = False
    """Drop rows whose line had to be repaired to be read."""
    refusals: bool = False
    """Drop completions that open with a refusal. Off: they are what the target says, and what `safety` consists of."""
    languages: tuple[str, ...] | None = None
    """Languages that are kept (ISO 639-1); None keeps all. Rows of undetermined language (code, one-liners) stay."""
    language_mismatch: bool = False
    """Drop rows that are answered in another language than they are asked in. Off: translations are such rows, and it
    reads every row's text once more."""
    licenses: tuple[str, ...] | None = None
    """Licences that are kept; None keeps all. With a list, a row whose licence nobody knows is dropped."""


def apply(
    facts: pl.DataFrame,
    positions: np.ndarray,
    settings: FilterSettings,
    *,
    licenses_by_source: Mapping[str, str] | None = None,
    prompts: Texts | None = None,
    completions: Texts | None = None,
) -> Outcome:
    """Return the rows that pass every filter, and for each other row the first reason that held.

    Args:
        facts: the facts table.
        positions: int64 positions of the rows to judge, ascending.
        licenses_by_source: the manifest's licence of each source, for rows that carry none.
        prompts, completions: texts by position; needed for `language_mismatch` alone, which comes last.
    """
    rows = facts.select(_COLUMNS)[positions].with_columns(_license(licenses_by_source or {}))
    reason = rows.select(pl.coalesce(*_reasons(settings)).alias("reason"))["reason"]
    if settings.language_mismatch:
        assert prompts is not None and completions is not None
        passed = np.flatnonzero(reason.is_null().to_numpy())
        mismatch = passed[_answered_in_another_language(positions[passed], prompts, completions)]
        reason = reason.scatter(mismatch, "language_mismatch")
    dropped = reason.is_not_null().to_numpy()
    named = zip(positions[dropped].tolist(), reason.drop_nulls().to_list(), strict=True)
    return Outcome(positions[~dropped], [Drop(row, why) for row, why in named])


def _answered_in_another_language(positions: np.ndarray, prompts: Texts, completions: Texts) -> np.ndarray:
    """Return where prompt and completion are of two languages, both of them sure: bool [len(positions)]."""
    from curation.languages import detect, prose  # here: the detector is loaded for this filter alone

    languages = (
        {detect(prose(a)), detect(prose(b))} for a, b in zip(prompts(positions), completions(positions), strict=True)
    )
    return np.array([len(pair) == 2 and UNDETERMINED not in pair for pair in languages], dtype=bool)


def _license(licenses_by_source: Mapping[str, str]) -> pl.Expr:
    """Return the licence of each row: its own, else its source's, else null."""
    of_source = (
        pl.col("source").cast(pl.String).replace_strict(dict(licenses_by_source), default=None, return_dtype=pl.String)
    )
    return pl.coalesce(pl.col("license"), of_source).alias("license")


def _reasons(settings: FilterSettings) -> list[pl.Expr]:
    """Return one expression per filter, in order of precedence: its reason where the row is to be dropped, else null."""
    total_tokens = pl.col("prompt_tokens").cast(pl.Int64) + pl.col("completion_tokens").cast(pl.Int64)
    finish_reason = pl.col("finish_reason").cast(pl.String)
    return [
        _when(_flag(Flag.EMPTY_PROMPT), "empty_prompt"),
        _when(_flag(Flag.EMPTY), "empty_completion"),
        pl.when(finish_reason.is_in(list(settings.drop_finish_reasons))).then(pl.lit("finish_reason_") + finish_reason),
        _when(_flag(Flag.CONTROL_TOKENS) & settings.control_tokens, "control_tokens"),
        _when(_flag(Flag.UNCLOSED_THINKING) & settings.unclosed_thinking, "unclosed_thinking"),
        _when(_flag(Flag.LOOP) & settings.loops, "loop"),
        _when(_flag(Flag.MOJIBAKE) & settings.mojibake, "mojibake"),
        _when(_flag(Flag.REPAIRED) & settings.repaired, "repaired_line"),
        _when(pl.col("prompt_chars") < settings.min_prompt_chars, "prompt_too_short"),
        _when(_above(pl.col("prompt_tokens"), settings.max_prompt_tokens), "prompt_too_long"),
        _when(pl.col("completion_tokens") < settings.min_completion_tokens, "completion_too_short"),
        _when(_above(pl.col("completion_tokens"), settings.max_completion_tokens), "completion_too_long"),
        _when(_above(total_tokens, settings.max_total_tokens), "row_too_long"),
        _when(pl.col("license").is_null() & (settings.licenses is not None), "license_unknown"),
        _when(_outside(pl.col("license"), settings.licenses), "license_not_allowed"),
        _when(_outside(pl.col("language"), settings.languages, UNDETERMINED), "language_not_wanted"),
        _when(_flag(Flag.REFUSAL) & settings.refusals, "refusal"),
    ]


def _when(holds: pl.Expr, reason: str) -> pl.Expr:
    return pl.when(holds).then(pl.lit(reason))


def _flag(flag: Flag) -> pl.Expr:
    return (pl.col("flags") & int(flag)) != 0


def _above(tokens: pl.Expr, most: int | None) -> pl.Expr:
    return pl.lit(False) if most is None else tokens > most


def _outside(column: pl.Expr, allowed: tuple[str, ...] | None, *always: str) -> pl.Expr:
    return pl.lit(False) if allowed is None else ~column.cast(pl.String).is_in([*allowed, *always])

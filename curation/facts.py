"""Facts: what is kept of a row once its text has been read.

One row of this table stands for one accepted or repaired line of a shard; its position in the table is how every later
step names it. Filters, deduplication, balance and the profile ask this table, so the text is read once. `ReadingSettings`
are the knobs that change what a fact is; they are part of the cache key, so a change of them reads again.
"""

from __future__ import annotations

from enum import IntFlag
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

FACTS_VERSION = 2
"""Part of the cache key; raised when a fact changes its meaning, so that facts on disk are never misread."""

DOMAINS = ("code", "math", "science", "chat", "writing", "tool_use", "reasoning", "instruction_following", "safety")
"""Domains that the content classifier knows. `other` is its abstention; manifests may name more (e.g. multilingual)."""

OTHER = "other"
"""Domain of a row that neither a manifest nor the content decides."""

UNDETERMINED = "und"
"""Language of a row that is all code, too short, or of no language that the detector is sure of (ISO 639-2)."""


class Flag(IntFlag):
    """Bits of the `flags` column. A row may have several; what to do about them is the filters' business."""

    EMPTY = 1
    """No completion: nothing but whitespace, and no tool call."""
    TRUNCATED = 2
    """Cut off by a token budget: finish reason `length`."""
    LOOP = 4
    """The completion repeats itself: a periodic tail, or mostly lines or phrases said before."""
    UNCLOSED_THINKING = 8
    """A thinking block is opened and not closed."""
    REFUSAL = 16
    """The completion opens with a refusal."""
    CONTROL_TOKENS = 32
    """Chat-template markup (e.g. `<|im_start|>`) inside the text, which a tokenizer would read as control tokens."""
    MOJIBAKE = 64
    """Text decoded with the wrong code page, or with replacement characters."""
    REPAIRED = 128
    """The line was not valid JSON or UTF-8 as it stood, and was read after repair."""
    EMPTY_PROMPT = 256
    """No user turn with text."""
    TOKENS_ESTIMATED = 512
    """Token counts are estimates from the text: the row carries no token ids."""


FACTS_SCHEMA = pa.schema(
    [
        ("line", pa.uint32()),  # 1-based; the record's number in files that are not line by line
        ("offset", pa.uint64()),  # byte offset of the line in the (decompressed) file
        ("num_bytes", pa.uint32()),  # length of the line without its end
        ("id", pa.string()),
        ("source", pa.string()),
        ("license", pa.string()),  # null where the row has none
        ("domain_manifest", pa.string()),  # as the row says; null where it does not
        ("domain_predicted", pa.string()),  # by content alone: a strong rule, the model, or `other`
        ("domain_by", pa.string()),  # what decided `domain_predicted`: rule, model, none
        ("domain_confidence", pa.float32()),  # 1.0 for a strong rule
        ("language", pa.string()),  # ISO 639-1 where there is one, `und` where unsure
        ("prompt_chars", pa.uint32()),
        ("completion_chars", pa.uint32()),  # reasoning excluded
        ("reasoning_chars", pa.uint32()),
        ("prompt_tokens", pa.uint32()),
        ("completion_tokens", pa.uint32()),  # everything the target generated, reasoning included
        ("tokens_estimated", pa.bool_()),
        ("has_ids", pa.bool_()),
        ("num_turns", pa.uint16()),  # user turns
        ("thinking", pa.bool_()),  # the row has reasoning
        ("finish_reason", pa.string()),  # null where the row does not say
        ("flags", pa.uint32()),  # bitmask of `Flag`
        ("prompt_hash", pa.uint64()),  # xxh3 of the prompt without case, punctuation and spacing
        ("completion_hash", pa.uint64()),  # xxh3 of the completion, outer space stripped
    ]
)
"""Columns as one shard's facts hold them on disk. A corpus adds `shard` (its file name) and `domain`, resolved by precedence,
and fills `id` where rows have none."""


class ReadingSettings(BaseModel):
    """What changes the facts and signatures of a shard."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    num_perm: int = Field(default=128, ge=1, le=1024)
    """MinHash permutations per signature; 0.5 KB per row at 128."""
    shingle_words: int = Field(default=5, ge=1, le=64)
    """Words per shingle."""
    sign: Literal["prompt", "completion", "both"] = "prompt"
    """The text that signatures describe."""
    digits: Literal["keep", "mask"] = "keep"
    """`keep`: prompts that differ only in numbers are different shingles. `mask`: every digit reads as 0."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seeds the permutations, as datasketch does."""
    abstain_below: float = Field(default=0.47, ge=0, le=1)
    """Confidence under which the domain model says `other`."""
    labels: Path | None = None
    """Labels of `curate label`, a prior per source for the domain model; None takes those in the folder, if any."""
    source_domains: dict[str, str] = Field(default_factory=dict)
    """Domain of each source, from a manifest, for rows that do not carry one. Applied after reading, so no part of the key."""

"""From rows to facts: everything that is computed from the text of a row, a batch at a time.

Per-row work is a few C-speed calls; what can be vectorised over a batch (shingles, signatures, the domain model, phrase
repetition) is. A batch is small enough to keep memory flat and large enough to make array calls cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from curation import rows
from curation.classify import classify
from curation.facts import FACTS_SCHEMA, Flag, ReadingSettings
from curation.flags import repeats_phrases, text_flags
from curation.languages import language_of
from curation.lines import Line
from curation.shingles import minhash, shingle_hashes

ASCII_CHARS_PER_TOKEN = 4.0
OTHER_BYTES_PER_TOKEN = 3.0
"""Estimates for rows without token ids: characters of ASCII text, and UTF-8 bytes of other text, per token."""

_ALPHANUMERIC = bytes(byte if chr(byte).isalnum() or byte >= 0x80 else 0x20 for byte in range(256)).lower()
_DROPPED = bytes(byte for byte in range(128) if not chr(byte).isalnum())


@dataclass(frozen=True, slots=True)
class ReadRow:
    """A row and the line it was read from."""

    line: Line
    row: dict[str, Any]


def measure(batch: list[ReadRow], settings: ReadingSettings) -> tuple[pa.RecordBatch, np.ndarray]:
    """Return the facts of a batch (`FACTS_SCHEMA`) and its signatures (uint32 [num_rows, num_perm])."""
    prompts = [rows.prompt_text(read.row) for read in batch]
    completions = [read.row["completion"] for read in batch]
    columns = [_facts_of_row(read, prompt) for read, prompt in zip(batch, prompts, strict=True)]
    _flag_phrase_loops(columns, completions)
    for fact, guess in zip(columns, classify([read.row for read in batch], prompts, settings), strict=True):
        fact["domain_predicted"], fact["domain_by"], fact["domain_confidence"] = guess
    table = pa.RecordBatch.from_pylist(columns, schema=FACTS_SCHEMA)
    return table, _sign(prompts, completions, settings)


def normalised_hash(text: str) -> int:
    """Return the xxh3 hash of a text without case, punctuation and spacing: equal for exact duplicates of the words."""
    encoded = text.encode("ascii") if text.isascii() else text.lower().encode("utf-8", "replace")
    return xxhash.xxh3_64_intdigest(encoded.translate(_ALPHANUMERIC, _DROPPED))


def exact_hash(text: str) -> int:
    """Return the xxh3 hash of a text without the space around it."""
    return xxhash.xxh3_64_intdigest(text.strip().encode("utf-8", "replace"))


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    num_chars = len(text)
    if text.isascii():
        return round(num_chars / ASCII_CHARS_PER_TOKEN)
    num_ascii = len(text.encode("ascii", "ignore"))
    num_other_bytes = len(text.encode("utf-8", "replace")) - num_ascii
    return round(num_ascii / ASCII_CHARS_PER_TOKEN + num_other_bytes / OTHER_BYTES_PER_TOKEN)


def _facts_of_row(read: ReadRow, prompt: str) -> dict[str, Any]:
    row, line = read.row, read.line
    completion, reasoning = row["completion"], row["reasoning"]
    flags = text_flags(prompt, completion, reasoning, bool(row["tool_calls"]))
    if row["finish_reason"] == "length":
        flags |= Flag.TRUNCATED
    if row["finish_reason"] == "repetition":
        flags |= Flag.LOOP
    if line.repaired:
        flags |= Flag.REPAIRED
    prompt_ids, completion_ids = row["prompt_token_ids"], row["completion_token_ids"]
    has_ids = prompt_ids is not None and completion_ids is not None
    if not has_ids:
        flags |= Flag.TOKENS_ESTIMATED
    return {
        "line": line.number,
        "offset": line.offset,
        "num_bytes": line.num_bytes,
        "id": row["id"],
        "source": row["source"],
        "license": row["license"],
        "domain_manifest": row["domain"],
        "language": language_of(completion, prompt),
        "prompt_chars": sum(len(message["content"]) for message in row["messages"]),
        "completion_chars": len(completion),
        "reasoning_chars": len(reasoning or ""),
        "prompt_tokens": len(prompt_ids) if prompt_ids is not None else _estimate_prompt(row),
        "completion_tokens": len(completion_ids)
        if completion_ids is not None
        else estimate_tokens(completion + (reasoning or "")),
        "tokens_estimated": not has_ids,
        "has_ids": has_ids,
        "num_turns": min(sum(message["role"] == "user" for message in row["messages"]), 65535),
        "thinking": bool(reasoning and reasoning.strip()) or "</think>" in completion,
        "finish_reason": row["finish_reason"],
        "flags": int(flags),
        "prompt_hash": normalised_hash(prompt),
        "completion_hash": exact_hash(completion),
    }


def _estimate_prompt(row: dict[str, Any]) -> int:
    return sum(estimate_tokens(message["content"]) for message in row["messages"])


def _flag_phrase_loops(facts: list[dict[str, Any]], completions: list[str]) -> None:
    """Flag loops by phrase where one is likely: in rows that hit the token budget or do not say how they ended."""
    suspects = [
        index
        for index, fact in enumerate(facts)
        if fact["finish_reason"] in (None, "length") and not fact["flags"] & Flag.LOOP
    ]
    for index, looped in zip(suspects, repeats_phrases([completions[index] for index in suspects]), strict=True):
        if looped:
            facts[index]["flags"] |= int(Flag.LOOP)


def _sign(prompts: list[str], completions: list[str], settings: ReadingSettings) -> np.ndarray:
    texts = {
        "prompt": lambda: prompts,
        "completion": lambda: completions,
        "both": lambda: [f"{prompt}\n{completion}" for prompt, completion in zip(prompts, completions, strict=True)],
    }[settings.sign]()
    hashes, starts = shingle_hashes(texts, words=settings.shingle_words, mask_digits=settings.digits == "mask")
    return minhash(hashes, starts, num_perm=settings.num_perm, seed=settings.seed)

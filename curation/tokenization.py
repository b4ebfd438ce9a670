"""Rows to documents: the ids that the engine recorded, or the ids that the target's chat template gives.

Rows of our own shards carry what the engine saw and sampled; nothing about them is computed again. Other people's rows
are rendered turn by turn (`chat_template`) and encoded (`encoders`): prompt and completion apart, so that the boundary is the
length of the prompt and a token never straddles it, just as none did when the target answered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, Field

from curation.chat_template import ChatTemplate, TemplateRefused, Turn
from curation.documents import Document, TokenizedChunk
from curation.encoders import Encode
from curation.funnel import Drop

OWN_COMPLETION = -1
"""`Document.turn` of a row's own completion; earlier assistant turns of its history count from 0."""

MIN_COMPLETION_TOKENS = 2
"""A drafter needs an anchor and one token to predict: fewer trained tokens teach nothing."""

_MAX_ID = np.iinfo(np.int32).max


class TokenizationSettings(BaseModel):
    """How rows become token ids."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_seq_len: int | None = Field(default=4096, ge=4)
    """Longest document, in tokens, prompt included; None sets no limit."""
    too_long: Literal["cut", "drop"] = "cut"
    """`cut` keeps the beginning of a completion that exceeds `max_seq_len` (counted); `drop` drops the row (counted)."""
    turns: Literal["all", "last"] = "all"
    """For rows without token ids: `all` learns from every assistant turn, one document each; `last` from the completion."""
    tokenizer: str | None = None
    """Folder or hub id of the target's tokenizer, for rows without token ids; None takes the target that `run.json` names."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Passed to the chat template, over those that `run.json` names."""
    encoder: Literal["auto", "huggingface"] = "auto"
    """`auto` uses gigatoken or fastokens where they prove equal to the tokenizer; the ids are the same."""
    trust_remote_code: bool = False
    """Run code that the tokenizer's repository carries."""


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """What turns text into ids, for rows that have none."""

    template: ChatTemplate
    encode: Encode


@dataclass(frozen=True, slots=True)
class _Pending:
    """A turn that waits to be encoded with the others of its chunk."""

    position: int
    number: int
    opening: int
    turn: Turn


def tokenize_rows(
    rows: Iterable[tuple[int, dict[str, Any]]], encoding: TextEncoding | None, settings: TokenizationSettings
) -> TokenizedChunk:
    """Return the documents of `rows`; a row that gives none is dropped with a reason.

    Args:
        rows: (position in the facts table, row as `rows.normalise` gives it).
        encoding: needed as soon as a row has no ids.
    """
    chunk = TokenizedChunk()
    pending: list[_Pending] = []
    for position, row in rows:
        if row["prompt_token_ids"] is not None and row["completion_token_ids"] is not None:
            _add(chunk, _from_ids(position, row, settings))
            continue
        assert encoding is not None, "rows without token ids need a tokenizer"
        turns = _turns(position, row, encoding.template, settings)
        if isinstance(turns, Drop):
            chunk.dropped.append(turns)
        else:
            pending.extend(_Pending(position, number, _opening(row), turn) for number, turn in turns)
    if pending:
        assert encoding is not None
        _encode_turns(chunk, pending, encoding.encode, settings)
    return chunk


def _from_ids(position: int, row: dict[str, Any], settings: TokenizationSettings) -> Document | Drop:
    try:
        prompt = np.asarray(row["prompt_token_ids"])
        completion = np.asarray(row["completion_token_ids"])
    except ValueError:  # a ragged list
        return Drop(position, "bad_token_ids")
    for ids in (prompt, completion):
        if ids.ndim != 1 or ids.dtype.kind != "i" or ids.min() < 0 or ids.max() > _MAX_ID:
            return Drop(position, "bad_token_ids")
    return _document(position, OWN_COMPLETION, prompt, completion, _opening(row), settings)


def _turns(
    position: int, row: dict[str, Any], template: ChatTemplate, settings: TokenizationSettings
) -> list[tuple[int, Turn]] | Drop:
    """Return (turn number, turn) for each assistant turn to learn from, or why the row has none."""
    messages, tools = row["messages"], row.get("tools")
    answer = {"content": row["completion"], "reasoning": row["reasoning"], "tool_calls": row["tool_calls"]}
    history = [index for index, message in enumerate(messages) if message["role"] == "assistant" and index > 0]
    try:
        turns = [(OWN_COMPLETION, template.turn(messages, answer, tools, row.get("finish_reason") != "length"))]
        if settings.turns == "all":
            turns = [
                (number, template.turn(messages[:index], messages[index], tools))
                for number, index in enumerate(history)
            ] + turns
    except TemplateRefused as error:
        return Drop(position, "chat_template_refused", detail=str(error))
    return turns


def _encode_turns(
    chunk: TokenizedChunk, pending: list[_Pending], encode: Encode, settings: TokenizationSettings
) -> None:
    """Encode all texts at once, which is what the fast encoders are fast at, and add a row's documents or its drop."""
    ids = encode([text for one in pending for text in (one.turn.prompt, one.turn.completion)])
    rows: dict[int, list[Document | Drop]] = {}
    for one, prompt, completion in zip(pending, ids[::2], ids[1::2], strict=True):
        completion = completion[: len(completion) - one.turn.num_end_tokens_cut]
        document = _document(one.position, one.number, prompt, completion, one.opening, settings)
        rows.setdefault(one.position, []).append(document)
    for results in rows.values():
        documents = [result for result in results if isinstance(result, Document)]
        # A row that lost some of its turns is kept for the others; one that lost all is dropped for its last one's reason.
        for result in documents or results[-1:]:
            _add(chunk, result)


def _document(
    position: int, turn: int, prompt: np.ndarray, completion: np.ndarray, opening: int, settings: TokenizationSettings
) -> Document | Drop:
    """Return the document of a prompt and a completion under the length limit, or why there is none."""
    room = len(completion) if settings.max_seq_len is None else settings.max_seq_len - len(prompt)
    cut = max(0, len(completion) - room)
    if cut and settings.too_long == "drop":
        return Drop(position, "longer_than_max_seq_len", detail=f"{len(prompt) + len(completion)} tokens")
    if len(completion) < MIN_COMPLETION_TOKENS:
        return Drop(position, "completion_too_short")
    if room < MIN_COMPLETION_TOKENS:
        return Drop(position, "prompt_fills_max_seq_len", detail=f"{len(prompt)} tokens")
    ids = np.concatenate([prompt, completion[: len(completion) - cut]]).astype(np.int32)
    return Document(position, turn, ids, len(prompt), cut, opening)


def _opening(row: dict[str, Any]) -> int:
    """Return a hash of the first user turn, case and spacing aside, as a signed 64-bit number."""
    first = next((message["content"] for message in row["messages"] if message["role"] == "user"), "")
    return xxhash.xxh3_64_intdigest(" ".join(first.lower().split()).encode("utf-8", "surrogatepass")) - (1 << 63)


def _add(chunk: TokenizedChunk, result: Document | Drop) -> None:
    if isinstance(result, Drop):
        chunk.dropped.append(result)
    else:
        chunk.documents.append(result)

"""Prompts to ask a drafter's target: held-out rows of a set, or files in the layouts that evaluation sets come in.

A file's layout is known by its fields: MT-bench and Spec-Bench (`turns`, `category`), HumanEval (`prompt`), GSM8K
(`question`), MBPP (`text`), MATH (`problem`), `instruction` with `input`, chats (`messages`, `conversations`), MGSM (a table
without header), and completions as `datagen` writes them. Texts are asked as they stand, as a user's turn in the target's
own chat template: wording moves tau, and benchmarks that add instructions of their own report other numbers.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import zstandard

from curation.arrow_sets import HELDOUT, read_rows

QUESTION_FIELDS = ("turns", "messages", "conversations", "prompt", "instruction", "question", "problem", "text")
"""Where a row may hold what is asked, in the order in which they are tried."""

ID_FIELDS = ("task_id", "question_id", "unique_id", "id", "prompt_id")

GENERIC_NAMES = frozenset({"test", "train", "question", "questions", "data", "validation"})
"""File names that say nothing; the folder's name stands for them."""


@dataclass(frozen=True)
class Prompt:
    """A text to go on from."""

    id: str
    domain: str
    source: str
    token_ids: list[int]
    """The rendered prompt."""
    messages: tuple[dict[str, Any], ...] = ()
    """The chat behind it, where it was rendered here."""
    later_turns: tuple[str, ...] = ()
    """What the user says next, each once the target has answered."""


@dataclass(frozen=True)
class Chat:
    """How messages become tokens: the target's tokenizer and template."""

    tokenizer: Any
    template_kwargs: dict[str, Any]
    """Passed to the template, e.g. enable_thinking."""

    def render(self, messages: Iterable[dict[str, Any]]) -> list[int]:
        """Return the token ids of a chat up to where the assistant speaks."""
        found = self.tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=True, **self.template_kwargs
        )
        return list(found["input_ids"])

    def next_turn(self, prompt: Prompt, reply_ids: list[int]) -> Prompt | None:
        """Return the prompt of the user's next turn after the target's reply, None when the user has said all."""
        if not prompt.later_turns:
            return None
        reply = self.tokenizer.decode(reply_ids, skip_special_tokens=True)
        messages = (
            *prompt.messages,
            {"role": "assistant", "content": reply},
            {"role": "user", "content": prompt.later_turns[0]},
        )
        name, _, turn = prompt.id.partition("#")
        return Prompt(
            f"{name}#{int(turn or 1) + 1}",
            prompt.domain,
            prompt.source,
            self.render(messages),
            messages,
            prompt.later_turns[1:],
        )


def heldout_prompts(data: Path, most_per_domain: int, seed: int = 0) -> list[Prompt]:
    """Return prompts of a set's held-out rows, at most so many a domain, drawn by seed and in the set's order.

    Raises:
        ValueError: the set has no held-out rows.
    """
    prompts = []
    if (data / HELDOUT).is_dir():
        for row in read_rows(data / HELDOUT):
            if 1 in row.loss_mask and (start := row.loss_mask.index(1)) > 0:
                prompts.append(Prompt(row.id, row.domain, row.source, list(row.input_ids[:start])))
    if not prompts:
        raise ValueError(f"{data}/{HELDOUT} holds no rows with a prompt; build the set with a held-out share")
    return draw_per_domain(prompts, most_per_domain, seed)


def file_prompts(path: Path, chat: Chat) -> list[Prompt]:
    """Return the prompts of an evaluation file.

    Raises:
        ValueError: no such file, it cannot be read, or a row asks nothing.
    """
    source = _source_name(path)
    prompts = []
    for number, row in enumerate(read_table(path)):
        messages, later = _asked(row)
        if not messages and not row.get("prompt_token_ids"):
            raise ValueError(
                f"{path}: row {number} asks nothing; a row holds one of {', '.join(QUESTION_FIELDS)}, or prompt_token_ids"
            )
        name = next((str(row[field]) for field in ID_FIELDS if row.get(field) is not None), str(number))
        domain = str(row.get("domain") or row.get("category") or source)
        if row.get("prompt_token_ids"):
            prompts.append(Prompt(f"{source}/{name}", domain, source, list(row["prompt_token_ids"])))
        else:
            ids = chat.render(messages)
            prompts.append(Prompt(f"{source}/{name}", domain, source, ids, tuple(messages), tuple(later)))
    return prompts


def draw_per_domain(prompts: list[Prompt], most: int, seed: int) -> list[Prompt]:
    """Return at most so many prompts of each domain, drawn by seed, domains by name and prompts in order."""
    by_domain: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        by_domain[prompt.domain].append(prompt)
    chooser = random.Random(seed)
    chosen = []
    for domain in sorted(by_domain):
        some = by_domain[domain]
        places = sorted(chooser.sample(range(len(some)), min(most, len(some))))
        chosen += [some[place] for place in places]
    return chosen


def read_table(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a .jsonl, .json, .tsv or .csv file, plain or as .gz or .zst, by field; fields are lower case.

    Raises:
        ValueError: no such file, or it cannot be read; names the line.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read prompts from {path}: {error.strerror}") from error
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".zst")]
    try:
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        if path.suffix == ".zst":
            content = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read()
        text = content.decode("utf-8-sig")
    except (OSError, zstandard.ZstdError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged or not text: {error}") from error
    if suffixes[-1:] in ([".tsv"], [".csv"]):
        yield from _rows_of_table(text, "\t" if suffixes[-1] == ".tsv" else ",")
        return
    for number, row in _rows_of_json(path, text):
        if not isinstance(row, dict):
            raise ValueError(f"{path}, row {number}: expected an object, found {type(row).__name__}")
        yield {str(name).lower(): value for name, value in row.items()}


def _rows_of_json(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    if text.lstrip().startswith("["):
        lines: list[str] = [text]
    else:
        lines = text.split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from error
        yield from enumerate(found, start=1) if isinstance(found, list) else [(number, found)]


def _rows_of_table(text: str, delimiter: str) -> Iterator[dict[str, Any]]:
    """A table whose first line names no question field has no header: its first column is asked, as in MGSM."""
    lines = io.StringIO(text)
    reader = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if delimiter == "\t" else csv.reader(lines)
    rows = [row for row in reader if row]
    header = [name.lower() for name in rows[0]] if rows else []
    if any(name in QUESTION_FIELDS for name in header):
        yield from (dict(zip(header, row, strict=False)) for row in rows[1:])
    else:
        yield from ({"question": row[0]} for row in rows)


def _asked(row: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the chat up to its first question, and what the user asks after that."""
    for field in QUESTION_FIELDS:
        value = row.get(field)
        if isinstance(value, str) and value.strip():
            extra = row.get("input") if field == "instruction" else None
            return [{"role": "user", "content": f"{value}\n{extra}" if extra else value}], []
        if isinstance(value, list) and value:
            return _from_turns(value) if isinstance(value[0], str) else _from_messages(value)
    return [], []


def _from_turns(turns: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    return [{"role": "user", "content": turns[0]}], turns[1:]


def _from_messages(found: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """A chat that ends with the user is asked as it stands; one with answers is asked from its first turn on, because
    the replies are the target's to give."""
    if isinstance(found[0], list):  # BFCL: a list of turns, each a list of messages
        found = [message for turn in found for message in turn]
    roles = {"human": "user", "gpt": "assistant"}
    messages: list[dict[str, Any]] = []
    for message in found:
        if not isinstance(message, dict):
            return [], []
        role = str(message.get("role", message.get("from", "user")))
        messages.append({"role": roles.get(role, role), "content": message.get("content", message.get("value")) or ""})
    if messages[-1]["role"] in ("user", "tool"):
        return messages, []
    first = next((place for place, message in enumerate(messages) if message["role"] == "user"), None)
    if first is None:
        return [], []
    later = [message["content"] for message in messages[first + 1 :] if message["role"] == "user"]
    return messages[: first + 1], later


def _source_name(path: Path) -> str:
    stem = path.name.split(".")[0].lower()
    return path.resolve().parent.name.lower() if stem in GENERIC_NAMES else stem

"""Prompts to ask a drafter's target: held-out rows of a set, or files in the layouts that evaluation sets come in.

Files are read by `training.prompt_files`, rows understood by `training.prompt_layouts`; completions as `datagen` writes them carry the prompt's
tokens. Texts are asked as they stand, as a user's turn in the target's own chat template: wording moves tau, and benchmarks
that add instructions of their own report other numbers.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from curation.arrow_sets import HELDOUT, read_rows
from training.prompt_files import read_table
from training.prompt_layouts import QUESTION_FIELDS, Question, read_question

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
    tools: tuple[dict[str, Any], ...] = ()
    """That the target may call."""
    turn: int = 1
    """Of the user, from 1."""


@dataclass(frozen=True)
class Chat:
    """How messages become tokens: the target's tokenizer and template."""

    tokenizer: Any
    template_kwargs: dict[str, Any]
    """Passed to the template, e.g. enable_thinking."""

    def render(self, messages: Iterable[dict[str, Any]], tools: tuple[dict[str, Any], ...] = ()) -> list[int]:
        """Return the token ids of a chat up to where the assistant speaks.

        Raises:
            ValueError: the template refuses the chat, or there is none.
        """
        kwargs = self.template_kwargs | ({"tools": list(tools)} if tools else {})
        try:
            found = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=True, return_dict=True, **kwargs
            )
        except (TemplateError, ValueError) as error:
            raise ValueError(f"the target's chat template cannot say it: {str(error).splitlines()[0]}") from error
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
        return replace(
            prompt,
            id=f"{prompt.id.removesuffix(f'#{prompt.turn}')}#{prompt.turn + 1}",
            token_ids=self.render(messages, prompt.tools),
            messages=messages,
            later_turns=prompt.later_turns[1:],
            turn=prompt.turn + 1,
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
    """Return the prompts of an evaluation file; ids that come twice carry their row's number.

    Raises:
        ValueError: no such file, it cannot be read or is empty, or a row asks nothing, or what the target cannot be asked.
    """
    source, prompts, taken = _source_name(path), [], set[str]()
    for number, row in enumerate(read_table(path), start=1):
        name = next((str(row[field]) for field in ID_FIELDS if row.get(field) is not None), str(number - 1))
        name = f"{source}/{name}"
        name = f"{name}~{number}" if name in taken else name
        taken.add(name)
        domain = str(row.get("domain") or row.get("category") or source)
        try:
            prompts.append(_prompt(row, name, domain, source, chat))
        except ValueError as error:
            raise ValueError(f"{path}: row {number} {error}") from error
    if not prompts:
        raise ValueError(f"{path} holds no rows")
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


def _source_name(path: Path) -> str:
    stem = path.name.split(".")[0].lower()
    return path.resolve().parent.name.lower() if stem in GENERIC_NAMES else stem


def _prompt(row: dict[str, Any], name: str, domain: str, source: str, chat: Chat) -> Prompt:
    if row.get("prompt_token_ids"):
        return Prompt(name, domain, source, list(row["prompt_token_ids"]))
    question: Question | None = read_question(row)
    if question is None:
        raise ValueError(
            f"asks nothing (found {', '.join(list(row)[:8])}); a row holds one of {', '.join(QUESTION_FIELDS)}, or prompt_token_ids"
        )
    ids = chat.render(question.messages, question.tools)
    return Prompt(name, domain, source, ids, question.messages, question.later_turns, question.tools)

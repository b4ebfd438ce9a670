"""The domain of a row by its content, for rows whose manifest does not say.

Strong rules come first: markup that only one domain uses (tool calls, fenced or plain source code). What they leave is decided by
a small linear model over words and word pairs of the prompt and of the answer's beginning, and over a few marks of form (LaTeX,
options to choose from, digits). Words of its vocabulary have weights of their own, which words that mean alike share; other
words and pairs are hashed. It says `other` where it is not sure. All of it is deterministic and offline; the weights are in
`domains.npz`, and docs/classifier.md says what they were trained on and how well they do on sources never seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from curation.domain_rules import Guess, answer_of, by_rule, question_of
from curation.facts import OTHER, ReadingSettings
from curation.shingles import word_hashes_of

TABLE_BITS = 16
"""Hashed features per side (prompt, answer): 2**TABLE_BITS."""

PRIOR_STRENGTH = 2.0
"""Rows that a source's labels count as when no label names a domain: higher trusts labels less."""

_MODEL = resources.files("curation").joinpath("domains.npz")
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - TABLE_BITS)

_OPTIONS = (("A.", "B.", "C."), ("A)", "B)", "C)"), ("A:", "B:", "C:"), ("a)", "b)", "c)"))

MARKS = (
    "prompt_latex",
    "answer_latex",
    "answer_boxed",
    "answer_final_number",
    "prompt_options",
    "prompt_digits",
    "prompt_many_digits",
    "answer_digits",
    "answer_many_digits",
    "prompt_code_marks",
    "answer_code_marks",
    "prompt_question",
    "prompt_short",
    "prompt_long",
    "answer_short",
    "answer_long",
    "answer_lists",
    "answer_verse",
    "answer_json",
    "answer_absent",
)
"""Marks of form that the model weighs besides words, each true or false."""


@dataclass(frozen=True)
class Model:
    """Weights of the linear model."""

    domains: tuple[str, ...]
    vocabulary: np.ndarray
    """uint64 [num_words], sorted hashes of the words that have weights of their own."""
    words: np.ndarray
    """float32 [num_rows, num_domains], rows as `word_features` numbers them; the last is of zeros, for what is left out."""
    marks: np.ndarray
    """float32 [len(MARKS), num_domains]."""
    bias: np.ndarray
    """float32 [num_domains]."""

    def probabilities(self, prompts: Sequence[str], answers: Sequence[str]) -> np.ndarray:
        """Return float32 [num_rows, num_domains]."""
        logits = self._word_scores(prompts, answers) + marks_of(prompts, answers) @ self.marks + self.bias
        logits -= logits.max(axis=1, keepdims=True)
        exp = np.exp(logits)
        return exp / exp.sum(axis=1, keepdims=True)

    def _word_scores(self, prompts: Sequence[str], answers: Sequence[str]) -> np.ndarray:
        indices, starts = word_features(prompts, answers, self.vocabulary)
        sums = np.zeros((len(starts) - 1, len(self.domains)), dtype=np.float32)
        filled = np.flatnonzero(np.diff(starts))
        if len(filled):
            sums[filled] = np.add.reduceat(self.words[indices], starts[filled], axis=0)
        sums /= np.sqrt(np.maximum(np.diff(starts), 1))[:, None]
        return sums[0::2] + sums[1::2]


def classify(rows: Sequence[dict[str, Any]], prompts: Sequence[str], settings: ReadingSettings) -> list[Guess]:
    """Return the domain of each row by its content alone."""
    guesses = [by_rule(row, prompt) for row, prompt in zip(rows, prompts, strict=True)]
    open_rows = [place for place, guess in enumerate(guesses) if guess is None]
    if open_rows:
        model = shipped_model()
        priors = source_priors(settings.labels, model.domains) if settings.labels else {}
        chances = model.probabilities(
            [question_of(prompts[place]) for place in open_rows],
            [answer_of(rows[place]["completion"]) for place in open_rows],
        )
        for place, chance in zip(open_rows, chances, strict=True):
            if (prior := priors.get(str(rows[place].get("source")))) is not None:
                chance = chance * prior / (chance * prior).sum()
            best = int(chance.argmax())
            sure = float(chance[best])
            guesses[place] = (
                (model.domains[best], "model", sure) if sure >= settings.abstain_below else (OTHER, "none", sure)
            )
    return [guess for guess in guesses if guess is not None]


def num_rows(vocabulary: np.ndarray) -> int:
    """Return how many weights a domain has: hashed features of both sides, words of both sides, and one for what is left out."""
    return 2 * ((1 << TABLE_BITS) + len(vocabulary)) + 1


def word_features(
    prompts: Sequence[str], answers: Sequence[str], vocabulary: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return indices into `Model.words` of words and word pairs, digits masked.

    Hashed features of prompts come first, then those of answers, then the vocabulary for prompts, then for answers.

    Returns:
        indices: int64 [num_features]; those of prompt i are in segment 2 * i, those of answer i in segment 2 * i + 1.
        starts: int64 [2 * num_rows + 1], where segments begin.
    """
    texts = [text for pair in zip(prompts, answers, strict=True) for text in pair]
    hashes, starts = word_hashes_of(texts, mask_digits=True)
    if not len(hashes):
        return np.empty(0, np.int64), starts * 2
    side = np.repeat(np.tile([0, 1], len(prompts)), np.diff(starts))
    pairs = hashes * _PAIR + np.roll(hashes, -1)
    pairs = (pairs ^ (pairs >> np.uint64(29))) * _PAIR
    indices = np.empty(2 * len(hashes), dtype=np.int64)
    indices[0::2] = ((hashes * _PAIR) >> _SHIFT).astype(np.int64) + (side << TABLE_BITS)
    indices[1::2] = (pairs >> _SHIFT).astype(np.int64) + (side << TABLE_BITS)
    if len(vocabulary):
        rank = np.searchsorted(vocabulary, hashes).clip(max=len(vocabulary) - 1)
        known = np.flatnonzero(vocabulary[rank] == hashes)
        indices[2 * known] = (2 << TABLE_BITS) + side[known] * len(vocabulary) + rank[known]
    ends = starts[1:][np.diff(starts) > 0]
    indices[2 * ends - 1] = num_rows(vocabulary) - 1  # the pair that would join two texts
    return indices, starts * 2


def marks_of(prompts: Sequence[str], answers: Sequence[str]) -> np.ndarray:
    """Return float32 [num_rows, len(MARKS)]."""
    return np.array(
        [_marks(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)], dtype=np.float32
    ).reshape(-1, len(MARKS))


@cache
def source_priors(path: Path, domains: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return, for each source that a person labelled, the share of each domain, smoothed by `PRIOR_STRENGTH` rows.

    Raises:
        ValueError: a line is not a label.
    """
    counts: dict[str, np.ndarray] = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            label = orjson.loads(line)
            source, domain = str(label["source"]), label["domain"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}, line {number}: expected a label with `source` and `domain`; `curate label` writes them"
            ) from error
        counts.setdefault(source, np.full(len(domains), PRIOR_STRENGTH / len(domains)))
        if domain in domains:
            counts[source][domains.index(domain)] += 1
    return {source: count / count.sum() for source, count in counts.items()}


@cache
def shipped_model() -> Model:
    """Return the model that ships with Draftmill."""
    with _MODEL.open("rb") as file:
        return load(file)


@cache
def model_digest() -> str:
    """Return what identifies the model that ships, for keys of what was made with it."""
    return hashlib.sha256(_MODEL.read_bytes()).hexdigest()[:16]


def load(file: Any) -> Model:
    """Read a model: int8 weights with one scale per domain for hashed features and one for the vocabulary, float32 marks and bias."""
    stored = np.load(file, allow_pickle=False)
    domains = tuple(orjson.loads(stored["domains"].tobytes()))
    words = np.concatenate(
        [
            stored["hashed"] * stored["hashed_scale"],
            stored["known"] * stored["known_scale"],
            np.zeros((1, len(domains)), np.float32),
        ]
    )
    return Model(domains, stored["vocabulary"], words, stored["marks"], stored["bias"])


def save(path: Any, model: Model) -> None:
    """Write a model as `load` reads it."""
    hashed, hashed_scale = _quantised(model.words[: 2 << TABLE_BITS])
    known, known_scale = _quantised(model.words[2 << TABLE_BITS : -1])
    np.savez_compressed(
        path,
        domains=np.frombuffer(orjson.dumps(list(model.domains)), dtype=np.uint8),
        vocabulary=model.vocabulary,
        hashed=hashed,
        hashed_scale=hashed_scale,
        known=known,
        known_scale=known_scale,
        marks=model.marks.astype(np.float32),
        bias=model.bias.astype(np.float32),
    )


def _quantised(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights as int8, and the float32 scale of each domain."""
    scale = np.maximum(np.abs(weights).max(axis=0, initial=0), 1e-6) / 127
    return np.round(weights / scale).astype(np.int8), scale.astype(np.float32)


def _marks(prompt: str, answer: str) -> tuple[bool, ...]:
    prompt_digits, answer_digits = _num_digits(prompt), _num_digits(answer)
    last = answer.rstrip()[-1:]
    lines = answer.count("\n") + 1
    return (
        "\\" in prompt or prompt.count("$") > 1 or "^" in prompt,
        "\\" in answer or answer.count("$") > 1,
        "\\boxed" in answer or "####" in answer,
        last.isdigit() or answer[-3:-1].isdigit(),
        any(all(option in prompt for option in style) for style in _OPTIONS),
        prompt_digits > 1,
        prompt_digits * 12 > len(prompt),
        answer_digits > 1,
        answer_digits * 12 > len(answer),
        "```" in prompt or "()" in prompt or ";\n" in prompt or "{\n" in prompt,
        "```" in answer or "()" in answer or ";\n" in answer or "{\n" in answer,
        prompt.rstrip().endswith("?"),
        len(prompt) < 60,
        len(prompt) > 600,
        len(answer) < 40,
        len(answer) > 600,
        "\n- " in answer or "\n* " in answer or "\n1. " in answer or "\n2. " in answer,
        lines >= 4 and len(answer) < 60 * lines and ". " not in answer,
        answer.lstrip()[:2] in ('{"', "[{") or answer.lstrip()[:1] == "{",
        not answer.strip(),
    )


def _num_digits(text: str) -> int:
    raw = text.encode("utf-8", "replace")
    return len(raw) - len(raw.translate(None, b"0123456789"))

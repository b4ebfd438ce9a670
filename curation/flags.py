"""What is wrong with a text: repetition loops, refusals, unclosed thinking, control tokens, mojibake.

Each check is a handful of C-speed string searches, because it runs on every row of every shard. They say what is there;
what to do about it is decided by the recipe of a build.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from curation.facts import Flag
from curation.shingles import shingle_hashes

LOOP_CHARS = 200
"""Least length of text that repeats before it counts as a loop."""

LOOP_TIMES = 4
"""Least number of times that a periodic tail repeats its unit."""

REPEATED_FRAC = 0.5
"""Share of a text that was said before, above which it is a loop."""

_PROBE_CHARS = 40
_LONGEST_PERIOD = 2000
_PHRASE_WORDS = 6

_THINKING = (("<think>", "</think>"), ("<thinking>", "</thinking>"))

_CONTROL_TOKEN = re.compile(
    r"<\|(?:im_start|im_end|im_sep|endoftext|eot_id|eom_id|end_of_text|begin_of_text|start_header_id|end_header_id|python_tag|"
    r"user|assistant|system|end|start|channel|message|return|call|fim_prefix|fim_middle|fim_suffix|endofprompt)\|>"
)
_CONTROL_STRINGS = ("_of_turn>", "INST]", "<\uff5cUser\uff5c>")  # Gemma, Llama-2 and Mistral, DeepSeek

# UTF-8 read as Windows-1252: A-tilde or A-circumflex before what a continuation byte became, and a-circumflex with euro.
_MOJIBAKE = re.compile("\ufffd|[\u00c2\u00c3][\u0080-\u00bf\u0152-\u017e\u0192\u02c6\u02dc\u2013-\u2122]|\u00e2\u20ac")

_MOJIBAKE_MARKS = ("\ufffd", "\u00c2", "\u00c3", "\u00e2\u20ac")

_REFUSAL = re.compile(
    r"\W*(?:(?:i['\u2019]?m|i am|we['\u2019]?re)?\s*(?:very |really |so )?sorry\b[^.!?\n]{0,40}?\b(?:but|,)?\s*)?"
    r"(?:(?:but|however|unfortunately),?\s+)?(?:as an ai(?: language model| assistant)?,?\s*)?"
    r"(?:i|we)\s*(?:can['\u2019]?t|cannot|can not|won['\u2019]?t|will not|['\u2019]?m (?:unable|not able)|am (?:unable|not able)|"
    r"must decline|have to decline|decline|do not feel comfortable|don['\u2019]?t feel comfortable|am not comfortable|"
    r"['\u2019]?m not comfortable)\b[^.\n]{0,30}?\b(?:to )?(?:help|assist|provid|fulfil|comply|complete|creat|generat|writ|answer|"
    r"discuss|engage|support|do that|continue|share|give|offer|participate|respond|decline|comfortable)",
    re.IGNORECASE,
)


def text_flags(prompt: str, completion: str, reasoning: str | None, has_tool_calls: bool) -> int:
    """Return the `Flag` bits that the texts of a row show, loops by phrase excepted (see `repeats_phrases`)."""
    flags = 0
    if not has_tool_calls and not completion.strip():
        flags |= Flag.EMPTY
    if not prompt.strip():
        flags |= Flag.EMPTY_PROMPT
    if ends_in_a_loop(completion) or (reasoning and ends_in_a_loop(reasoning)) or repeats_lines(completion):
        flags |= Flag.LOOP
    if thinks_on(completion):
        flags |= Flag.UNCLOSED_THINKING
    if is_refusal(completion):
        flags |= Flag.REFUSAL
    if has_control_tokens(completion) or has_control_tokens(prompt):
        flags |= Flag.CONTROL_TOKENS
    if is_mojibake(completion) or is_mojibake(prompt):
        flags |= Flag.MOJIBAKE
    return flags


def ends_in_a_loop(text: str) -> bool:
    """Whether the text ends in `LOOP_TIMES` or more repeats of one unit, over at least `LOOP_CHARS` characters."""
    text = text.rstrip()
    size = len(text)
    if size < LOOP_CHARS:
        return False
    before = text.rfind(text[-_PROBE_CHARS:], max(0, size - _PROBE_CHARS - _LONGEST_PERIOD), size - 1)
    if before < 0:
        return False
    period = size - _PROBE_CHARS - before
    span = max(LOOP_TIMES * period, LOOP_CHARS)
    return span <= size and text[size - span : size - period] == text[size - span + period :]


def repeats_lines(text: str) -> bool:
    """Whether more than `REPEATED_FRAC` of the characters are in lines said before.

    Three lines of the second half are looked up first: where none of them was said before, the text does not loop.
    """
    if len(text) < LOOP_CHARS:
        return False
    if not any(_said_before(text, len(text) * eighths // 8) for eighths in (5, 6, 7)):
        return False
    lines = text.split("\n")
    if len(lines) < 2 * LOOP_TIMES:
        return False
    said = len(text) - len(lines) + 1
    return said - sum(map(len, set(lines))) > REPEATED_FRAC * said


def _said_before(text: str, place: int) -> bool:
    """Whether the line at a place stands earlier in the text."""
    begin = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place)
    return text.find(text[begin : end if end >= 0 else None], 0, begin) >= 0


def repeats_phrases(texts: Sequence[str]) -> np.ndarray:
    """Return, for each text, whether more than `REPEATED_FRAC` of its six-word phrases were said before (bool [num_texts])."""
    hashes, starts = shingle_hashes(texts, words=_PHRASE_WORDS)
    repeated = np.zeros(len(texts), dtype=bool)
    for index in np.flatnonzero(np.diff(starts) >= LOOP_TIMES * _PHRASE_WORDS):
        phrases = hashes[starts[index] : starts[index + 1]]
        repeated[index] = len(np.unique(phrases)) < (1 - REPEATED_FRAC) * len(phrases)
    return repeated


def thinks_on(completion: str) -> bool:
    """Whether a thinking block is opened more often than it is closed."""
    if "<think" not in completion:
        return False
    return any(completion.count(opening) > completion.count(closing) for opening, closing in _THINKING)


def is_refusal(completion: str) -> bool:
    """Whether the completion opens by declining to answer."""
    return _REFUSAL.match(completion, 0, 240) is not None


def has_control_tokens(text: str) -> bool:
    """Whether the text holds markup that a tokenizer would read as control tokens of a chat template."""
    if "|" in text and "<|" in text and _CONTROL_TOKEN.search(text):
        return True
    return any(token in text for token in _CONTROL_STRINGS)


def is_mojibake(text: str) -> bool:
    """Whether the text was decoded with the wrong code page somewhere on its way."""
    if text.isascii():
        return False
    return any(mark in text for mark in _MOJIBAKE_MARKS) and _MOJIBAKE.search(text) is not None

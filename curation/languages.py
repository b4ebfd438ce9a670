"""The language of a row: that of its prose, by CLD2, with code stripped first.

CLD2 (Compact Language Detector 2, Apache-2.0) is a table of quad-grams: 60,000 texts per second and core, deterministic,
offline. Source code has no language, and a detector that is shown some will name one; so fenced blocks and lines that look
like code go first, and where little prose is left the answer is `und`.
"""

from __future__ import annotations

import re

import pycld2

from curation.facts import UNDETERMINED

MIN_PROSE_CHARS = 24
"""Prose below this says too little, unless it is in a script that only one language uses."""

MIN_RARE_CHARS = 120
"""Text below this is not taken for a language outside `_COMMON`: short names and formulas often look like one."""

_COMMON = frozenset(
    "en de fr es it pt nl sv da no fi pl cs hu ro tr el ru uk bg sr hr ar fa he hi bn ta te mr gu pa ur th vi id ms ja ko zh ca".split()
)
_SAMPLE_CHARS = 400
_CODES = {"iw": "he", "zh-Hant": "zh", "jw": "jv", "nb": "no", "nn": "no", "un": UNDETERMINED}
_CODE_LINE = re.compile(
    r"^[ \t]*(?:[{}()\[\];]|#include|import |from \w|def |class |return\b|if \(|for \(|while \(|//|/\*|\*|@|\$|>>>|<)|[{};]\s*$"
)
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def language_of(completion: str, prompt: str) -> str:
    """Return the language of what the target said, or, where that is mostly code, of what it was asked.

    Returns:
        an ISO 639-1 code (639-2 where there is none), or `und`.
    """
    language = detect(prose(completion))
    return detect(prose(prompt)) if language == UNDETERMINED else language


def detect(text: str) -> str:
    """Return the language that CLD2 is sure of, or `und`."""
    if not text or (len(text) < MIN_PROSE_CHARS and text.isascii()):
        return UNDETERMINED
    try:
        reliable, _, guesses = pycld2.detect(text)
    except pycld2.error:  # refuses control characters and other code points that are not text
        reliable, _, guesses = pycld2.detect(_UNPRINTABLE.sub(" ", text).encode("utf-8", "ignore").decode())
    code = guesses[0][1]
    if not reliable or len(code) > 3 and code not in _CODES:
        return UNDETERMINED
    language = _CODES.get(code, code)
    return language if language in _COMMON or len(text) >= MIN_RARE_CHARS else UNDETERMINED


def prose(text: str) -> str:
    """Return the beginning of a text without fenced blocks and without lines that look like code."""
    sample = text[: 4 * _SAMPLE_CHARS]
    if "```" in sample:
        sample = "\n".join(sample.split("```")[::2])
    sample = sample[:_SAMPLE_CHARS]
    if "\n" not in sample:
        return sample
    lines = sample.split("\n")
    kept = [line for line in lines if not _CODE_LINE.search(line)]
    # Code without a fence: what is left between its lines is code as well.
    return "\n".join(kept) if len(kept) * 3 > len(lines) * 2 else ""

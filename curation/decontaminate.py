"""Decontamination: rows that hold an item of an evaluation set, whole or in part.

What counts is how much of the *item* a row covers: the fraction of the item's word n-grams that occur anywhere in the
row. So an item is found inside a long chat, re-wrapped, indented or quoted, and with some of its words edited, while a
row that merely shares a phrase with a long item is not. Three things keep precision:

* n-grams that several items of one benchmark share (instructions, code headers) say nothing and are left out;
* items of few words have to be there in full, on lines of their own, because their words are common;
* whatever the hashed index finds is counted again on the words themselves.

`evaluation_sets` reads the items.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field

from curation.evaluation_sets import EvaluationItem
from curation.funnel import Drop, Outcome, Texts
from curation.shingles import shingle_hashes

_CHUNK_ROWS = 256
_SPAN_CHARS = 200
_FILTER_BITS = 22

_WORD = re.compile("[0-9a-z_\u0080-\u07ff]+|[\u0800-\U0010ffff]")
"""A word, on lower-cased text, as `shingles` has it."""


class DecontaminateSettings(BaseModel):
    """Which evaluation sets must not be in the set, and what counts as being in it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    against: tuple[str, ...] = ()
    """Evaluation sets: files (.jsonl, .json, .tsv, .csv, .parquet, also .gz), or names that are fetched from the hub
    (gsm8k, math_500, humaneval, mbpp, mt_bench). Empty skips the step."""
    ngram_words: int = Field(default=8, ge=2, le=32)
    """Words per n-gram."""
    coverage: float = Field(default=0.3, gt=0, le=1)
    """Fraction of an item's n-grams in a row from which the row is contaminated. With 8-grams, 0.3 finds an item with
    every twentieth word edited."""
    shared_by: int = Field(default=3, ge=2)
    """n-grams that this many items of one benchmark have in common are boilerplate and do not count."""
    short_words: int = Field(default=12, ge=1)
    """Items with fewer words than this are short: they count only in full, on lines of their own."""
    least_words: int = Field(default=4, ge=1)
    """Items with fewer words than this are never looked for."""


def remove(
    facts: pl.DataFrame,
    positions: np.ndarray,
    texts: Texts,
    items: Sequence[EvaluationItem],
    settings: DecontaminateSettings,
) -> Outcome:
    """Return the rows that hold no evaluation item, and for the others the item, its coverage and the span.

    Args:
        facts: the facts table; not read, text decides.
        positions: int64 positions of the rows to judge, ascending.
        texts: everything that a drafter would learn from or see: prompt and completion, joined by a newline.
        items: what to look for.
    """
    long = [item for item in items if len(words_of(item.text)) >= settings.short_words]
    short = [item for item in items if settings.least_words <= len(words_of(item.text)) < settings.short_words]
    indexes = [
        _Index(long, settings.ngram_words, settings.shared_by, settings.coverage),
        _Index(short, settings.least_words, len(short) + 1, 1.0),
    ]
    dropped = []
    for chunk, rows in _chunks(positions, texts):
        found: dict[int, Drop] = {}
        for index, judge in zip(indexes, (_cover, _stand_alone), strict=True):
            for row, item in index.candidates(rows):
                drop = judge(int(chunk[row]), rows[row], index, item)
                if drop and (row not in found or (drop.score or 0) > (found[row].score or 0)):
                    found[row] = drop
        dropped += [found[row] for row in sorted(found)]
    gone = np.array([drop.row for drop in dropped], dtype=np.int64)
    notes = [f"{len(items):,} evaluation items ({_by_benchmark(items)}) were looked for."]
    if skipped := len(items) - len(long) - len(short):
        notes.append(f"{skipped:,} items of fewer than {settings.least_words} words were not looked for.")
    return Outcome(np.setdiff1d(positions, gone), dropped, notes)


def words_of(text: str) -> list[str]:
    """Return the words of a text as shingles have them."""
    return _WORD.findall(text.lower())


class _Index:
    """The n-grams of items, as hashes and as words."""

    def __init__(self, items: Sequence[EvaluationItem], words: int, shared_by: int, coverage: float) -> None:
        self.items, self.words, self.coverage = items, words, coverage
        grams = [_grams(words_of(item.text), words) for item in items]
        shared = _boilerplate(items, grams, shared_by)
        self.grams = [gram - shared for gram in grams]
        """Distinct n-grams of each item, boilerplate left out."""
        hashes, starts = shingle_hashes([item.text for item in items], words=words)
        item_of = np.repeat(np.arange(len(items)), np.diff(starts))
        pairs = np.unique(hashes.astype(np.uint64) << np.uint64(32) | item_of.astype(np.uint64))
        self._hashes, self._items = (pairs >> np.uint64(32)).astype(np.uint32), pairs.astype(np.uint32).astype(np.int64)
        self._maybe = np.zeros(1 << _FILTER_BITS, dtype=bool)
        self._maybe[self._hashes >> np.uint32(32 - _FILTER_BITS)] = True

    def candidates(self, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield (text, item) where the text holds enough n-grams of the item, hash collisions and boilerplate included."""
        if not self.items:
            return
        hashes, starts = shingle_hashes(texts, words=self.words)
        at = np.flatnonzero(self._maybe[hashes >> np.uint32(32 - _FILTER_BITS)])
        first, last = (np.searchsorted(self._hashes, hashes[at], side=side) for side in ("left", "right"))
        counts = last - first
        text_of = np.searchsorted(starts, at, side="right") - 1
        entry = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        matched = np.unique(np.stack([np.repeat(text_of, counts), self._items[entry], entry]), axis=1)
        keys, num_matched = np.unique(matched[:2], axis=1, return_counts=True)
        for text, item, num in zip(*keys.tolist(), num_matched.tolist(), strict=True):
            if num >= self.coverage * len(self.grams[item]) > 0:
                yield text, item


def _cover(row: int, text: str, index: _Index, item: int) -> Drop | None:
    """Judge by the covered fraction of the item's n-grams; the longest covered stretch is the span."""
    found = list(_WORD.finditer(text.lower()))
    words = [match.group() for match in found]
    grams = index.grams[item]
    hits = [at for at in range(len(words) - index.words + 1) if tuple(words[at : at + index.words]) in grams]
    coverage = len({tuple(words[at : at + index.words]) for at in hits}) / len(grams)
    if coverage < index.coverage:
        return None
    first, last = _longest_run(hits)
    return _drop(row, index.items[item], coverage, text[found[first].start() : found[last + index.words - 1].end()])


def _stand_alone(row: int, text: str, index: _Index, item: int) -> Drop | None:
    """Judge by whether the item is there in full, starting a line and ending one."""
    wanted = words_of(index.items[item].text)
    pattern = r"^\W*" + r"\W+".join(map(re.escape, wanted)) + r"\W*$"
    match = re.search(pattern, text.lower(), re.MULTILINE)
    return _drop(row, index.items[item], 1.0, text[match.start() : match.end()]) if match else None


def _drop(row: int, item: EvaluationItem, coverage: float, span: str) -> Drop:
    span = " ".join(span.split())
    shown = span if len(span) <= _SPAN_CHARS else f"{span[:_SPAN_CHARS]}..."
    return Drop(row, f"contaminated_{item.benchmark}", f"{item.benchmark}:{item.id}", round(coverage, 4), shown)


def _grams(words: list[str], size: int) -> set[tuple[str, ...]]:
    return {tuple(words[at : at + size]) for at in range(len(words) - size + 1)}


def _boilerplate(items: Sequence[EvaluationItem], grams: list[set[tuple[str, ...]]], shared_by: int) -> set:
    """Return the n-grams that at least `shared_by` items of one benchmark have."""
    counts = Counter((item.benchmark, gram) for item, own in zip(items, grams, strict=True) for gram in own)
    return {gram for (_, gram), count in counts.items() if count >= shared_by}


def _longest_run(places: list[int]) -> tuple[int, int]:
    """Return first and last of the longest run of consecutive numbers (the first one of equals)."""
    best = run = (places[0], places[0])
    for place in places[1:]:
        run = (run[0], place) if place == run[1] + 1 else (place, place)
        best = run if run[1] - run[0] > best[1] - best[0] else best
    return best


def _chunks(positions: np.ndarray, texts: Texts) -> Iterator[tuple[np.ndarray, list[str]]]:
    for at in range(0, len(positions), _CHUNK_ROWS):
        chunk = positions[at : at + _CHUNK_ROWS]
        yield chunk, list(texts(chunk))


def _by_benchmark(items: Sequence[EvaluationItem]) -> str:
    counts = Counter(item.benchmark for item in items)
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))

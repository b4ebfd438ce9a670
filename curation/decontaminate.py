"""Decontamination: rows that hold an item of an evaluation set, whole or in part.

What counts is how much of the *item* is in a row, so that an item is found inside a long chat, re-wrapped, indented or
quoted. A row is contaminated by an item when it

* covers enough of the item's word n-grams, anywhere: long items, also in part; or
* has enough of the item's words in order within a stretch of the item's length: items that were edited; or, for items of
  few words, on a line of its own.

Two things keep precision. n-grams that several items of a benchmark share (instructions, code headers) do not count, and
words weigh by how rare they are among its items, so that "find the factorial of a given number" is not "find the parity
of a given number". And the hashed index only proposes; what is dropped is judged on the words themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curation.alignment import align, align_window, rarity
from curation.evaluation_sets import EvaluationItem
from curation.funnel import Drop, Outcome, Texts
from curation.shingles import shingle_hashes

_CHUNK_ROWS = 256
"""Rows that are read and searched together."""

_SPAN_CHARS = 200
"""Longest span that is shown."""

_FILTER_BITS = 22
"""log2 of the size of the table that most n-grams of most rows stop at."""

_ALIGNED_NGRAM = 5
_ALIGNED_WORDS = 256
_ALIGNED_PROPOSAL = 0.1
"""Items of up to 256 words are aligned where a row has a tenth of their 5-grams."""

_LINE_NGRAM = 4
_LINE_SLACK = 2
"""Short items are compared with lines that share a 4-gram and have up to two words more or less."""

_WORD = re.compile("[0-9a-z_\u0080-\u07ff]+|[\u0800-\U0010ffff]")
"""A word, on lower-cased text, as `shingles` has it."""


class DecontaminateSettings(BaseModel):
    """Which evaluation sets must not be learned, and what counts as being there."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    against: tuple[str, ...] = ()
    """Evaluation sets: files (.jsonl, .json, .tsv, .csv, .parquet, also .gz), or names that are fetched from the hub
    (gsm8k, math_500, humaneval, mbpp, mt_bench). Empty skips the step."""
    ngram_words: int = Field(default=8, ge=2, le=32)
    """Words per n-gram for coverage."""
    coverage: float = Field(default=0.3, gt=0, le=1)
    """Fraction of an item's n-grams in a row from which the row is contaminated."""
    shared_by: int = Field(default=3, ge=2)
    """n-grams that this many items of one benchmark have in common are boilerplate and do not count."""
    alignment: float = Field(default=0.7, gt=0, le=1)
    """Fraction of an item's words, weighted by rarity, in order in one stretch of a row, from which it is contaminated."""
    short_words: int = Field(default=12, ge=5)
    """Items with fewer words than this are sought on lines of their own only."""
    line_alignment: float = Field(default=0.8, gt=0, le=1)
    """Fraction of a short item, and of the line it is on, that have to agree."""
    least_words: int = Field(default=4, ge=4)
    """Items with fewer words than this are not looked for."""

    @model_validator(mode="after")
    def _long_items_have_ngrams(self) -> DecontaminateSettings:
        if self.ngram_words > self.short_words:
            raise ValueError(
                f"`ngram_words` ({self.ngram_words}) is more than `short_words` ({self.short_words}): "
                "an item that is not short must have an n-gram"
            )
        return self


def remove(
    facts: pl.DataFrame,
    positions: np.ndarray,
    texts: Texts,
    items: Sequence[EvaluationItem],
    settings: DecontaminateSettings,
) -> Outcome:
    """Return the rows that hold no evaluation item, and for the others the item, how much of it, and the span.

    Args:
        facts: the facts table; unused, text decides.
        positions: int64 positions of the rows to judge, ascending.
        texts: what is searched: the prompt, or prompt and completion joined by a newline.
        items: what is looked for.
    """
    searches = _searches(items, settings)
    dropped = []
    for at in range(0, len(positions), _CHUNK_ROWS):
        chunk = positions[at : at + _CHUNK_ROWS]
        for row, hit in _search(list(texts(chunk)), searches):
            item = hit.item
            name = f"{item.benchmark}:{item.id}"
            dropped.append(Drop(int(chunk[row]), f"contaminated_{item.benchmark}", name, round(hit.score, 4), hit.span))
    kept = np.setdiff1d(positions, [drop.row for drop in dropped]).astype(np.int64)
    return Outcome(kept, dropped, [_note(items, settings)] if items else [])


def words_of(text: str) -> list[str]:
    """Return the words of a text as shingles have them."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True, slots=True)
class _Hit:
    """An item found in a row."""

    item: EvaluationItem
    score: float
    span: str


@dataclass(frozen=True, slots=True)
class _Entry:
    """An item prepared for search."""

    item: EvaluationItem
    words: list[str]
    weights: np.ndarray
    """float64 [num_words], rarity among the items of the benchmark."""


class _Row:
    """A row's text, taken apart when it is first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found = list(_WORD.finditer(text.lower()))
        self.words = [match.group() for match in self._found]

    @cached_property
    def lines(self) -> list[tuple[str, list[str]]]:
        """Each line with its words."""
        return [(line, words_of(line)) for line in self.text.split("\n")]

    def span(self, first: int, last: int) -> str:
        """Return the text from word `first` to word `last`, on one line, cut to a length that can be shown."""
        span = " ".join(self.text[self._found[first].start() : self._found[last].end()].split())
        return span if len(span) <= _SPAN_CHARS else f"{span[:_SPAN_CHARS]}..."


Judge = Callable[[_Row, "_Index", int], _Hit | None]
"""Judges whether a row holds the index's item of that number."""


def _searches(items: Sequence[EvaluationItem], settings: DecontaminateSettings) -> list[tuple[_Index, Judge]]:
    """Return the indexes that propose (row, item) pairs, each with what judges them."""
    entries = _entries([item for item in items if len(words_of(item.text)) >= settings.least_words])
    short = [entry for entry in entries if len(entry.words) < settings.short_words]
    long = [entry for entry in entries if len(entry.words) >= settings.short_words]
    edited = [entry for entry in long if len(entry.words) <= _ALIGNED_WORDS]

    def covers(row: _Row, index: _Index, number: int) -> _Hit | None:
        return _cover(row, index, number, settings.coverage)

    def aligns(row: _Row, index: _Index, number: int) -> _Hit | None:
        entry = index.entries[number]
        found = align(entry.words, entry.weights, row.words, _ALIGNED_NGRAM, settings.alignment)
        return _Hit(entry.item, found.fraction, row.span(found.first, found.last)) if found else None

    def is_a_line(row: _Row, index: _Index, number: int) -> _Hit | None:
        return _find_line(row, index.entries[number], settings.line_alignment)

    return [
        (_Index(long, settings.ngram_words, settings.shared_by, settings.coverage), covers),
        (_Index(edited, _ALIGNED_NGRAM, settings.shared_by, _ALIGNED_PROPOSAL), aligns),
        (_Index(short, _LINE_NGRAM, len(items) + 1, 0.0), is_a_line),
    ]


def _entries(items: Sequence[EvaluationItem]) -> list[_Entry]:
    """Prepare items, each weighed within its benchmark."""
    entries = []
    for benchmark in dict.fromkeys(item.benchmark for item in items):
        own = [item for item in items if item.benchmark == benchmark]
        words = [words_of(item.text) for item in own]
        entries += [_Entry(*parts) for parts in zip(own, words, rarity(words), strict=True)]
    return entries


def _search(texts: Sequence[str], searches: list[tuple[_Index, Judge]]) -> Iterator[tuple[int, _Hit]]:
    """Yield (text, best hit) for each text that holds an item."""
    rows: dict[int, _Row] = {}
    best: dict[int, _Hit] = {}
    for index, judge in searches:
        for row, number in index.propose(texts):
            if row not in rows:
                rows[row] = _Row(texts[row])
            hit = judge(rows[row], index, number)
            if hit and (row not in best or hit.score > best[row].score):
                best[row] = hit
    yield from sorted(best.items(), key=lambda found: found[0])


class _Index:
    """The n-grams of items: hashed to propose, as words to judge."""

    def __init__(self, entries: Sequence[_Entry], ngram: int, shared_by: int, proposal: float) -> None:
        """Index items by their n-grams without boilerplate.

        Args:
            proposal: fraction of an item's n-grams in a row from which the pair is proposed; one n-gram at least.
        """
        self.entries, self.ngram = entries, ngram
        grams = [set(_runs(entry.words, ngram)) for entry in entries]
        shared = _shared_grams(entries, grams, shared_by)
        self.grams = [own - shared or own for own in grams]
        """Distinct n-grams of each item; all of them where nothing but boilerplate is there."""
        self._needed = np.array([max(1.0, proposal * len(own)) for own in self.grams])
        hashes, starts = shingle_hashes([" ".join(entry.words) for entry in entries], words=ngram)
        counts = [
            gram in own for entry, own in zip(entries, self.grams, strict=True) for gram in _runs(entry.words, ngram)
        ]
        hashes, owner = hashes[counts], np.repeat(np.arange(len(entries)), np.diff(starts))[counts]
        hashes, owner = _split(np.unique(hashes.astype(np.uint64) << np.uint64(32) | owner.astype(np.uint64)))
        self._hashes, self._owner = hashes.astype(np.uint32), owner
        self._maybe = np.zeros(1 << _FILTER_BITS, dtype=bool)
        self._maybe[self._hashes >> np.uint32(32 - _FILTER_BITS)] = True

    def propose(self, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield (text, item) where the text seems to hold enough n-grams of the item."""
        if not self.entries:
            return
        hashes, starts = shingle_hashes(texts, words=self.ngram)
        at = np.flatnonzero(self._maybe[hashes >> np.uint32(32 - _FILTER_BITS)])
        text_of = (np.searchsorted(starts, at, side="right") - 1).astype(np.uint64)
        # Each n-gram of a text once: repeats say nothing more about the item.
        text_of, hash_of = _split(np.unique(text_of << np.uint64(32) | hashes[at]))
        first, last = (
            np.searchsorted(self._hashes, hash_of.astype(np.uint32), side=side) for side in ("left", "right")
        )
        counts = last - first
        entry = np.repeat(first, counts) + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        pairs, matched = np.unique(np.repeat(text_of, counts) << np.uint64(32) | self._owner[entry], return_counts=True)
        text_of, item_of = _split(pairs)
        enough = matched >= self._needed[item_of.astype(np.int64)]
        yield from zip(text_of[enough].tolist(), item_of[enough].tolist(), strict=True)


def _cover(row: _Row, index: _Index, number: int, least: float) -> _Hit | None:
    """Judge by the covered fraction of the item's n-grams; the longest covered stretch is the span."""
    grams, size = index.grams[number], index.ngram
    found = {at: gram for at, gram in enumerate(_runs(row.words, size)) if gram in grams}
    fraction = len(set(found.values())) / len(grams)
    if fraction < least:
        return None
    first, last = _longest_run(list(found))
    return _Hit(index.entries[number].item, fraction, row.span(first, last + size - 1))


def _find_line(row: _Row, entry: _Entry, least: float) -> _Hit | None:
    """Judge a short item by the line that is nearest to it."""
    best: tuple[float, str] = (0.0, "")
    alike = np.ones(len(entry.words))
    for line, words in row.lines:
        longer = max(len(words), len(entry.words))
        if abs(len(words) - len(entry.words)) > _LINE_SLACK:
            continue
        found = align_window(entry.words, alike, words, least)
        if found and found.fraction * len(entry.words) >= least * longer - 1e-9:
            best = max(best, (found.fraction * len(entry.words) / longer, line.strip()))
    return _Hit(entry.item, *best) if best[0] else None


def _split(pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the upper and lower halves of uint64 values."""
    return pairs >> np.uint64(32), pairs & np.uint64(0xFFFFFFFF)


def _runs(words: Sequence[str], size: int) -> Iterator[tuple[str, ...]]:
    """Yield every run of `size` words."""
    return zip(*(words[at:] for at in range(size)), strict=False)


def _shared_grams(entries: Sequence[_Entry], grams: list[set[tuple[str, ...]]], shared_by: int) -> set[tuple[str, ...]]:
    """Return the n-grams that at least `shared_by` different items of one benchmark have."""
    distinct = {(entry.item.benchmark, tuple(entry.words)): own for entry, own in zip(entries, grams, strict=True)}
    counts = Counter((benchmark, gram) for (benchmark, _), own in distinct.items() for gram in own)
    return {gram for (_, gram), count in counts.items() if count >= shared_by}


def _longest_run(places: list[int]) -> tuple[int, int]:
    """Return first and last of the longest run of consecutive numbers (the first one of equals)."""
    best = run = (places[0], places[0])
    for place in places[1:]:
        run = (run[0], place) if place == run[1] + 1 else (place, place)
        best = run if run[1] - run[0] > best[1] - best[0] else best
    return best


def _note(items: Sequence[EvaluationItem], settings: DecontaminateSettings) -> str:
    """Say what was looked for."""
    counts = Counter(item.benchmark for item in items)
    skipped = sum(len(words_of(item.text)) < settings.least_words for item in items)
    sets = ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
    ignored = f"; {skipped:,} of fewer than {settings.least_words} words were ignored" if skipped else ""
    return f"{len(items):,} evaluation items were looked for ({sets}){ignored}."

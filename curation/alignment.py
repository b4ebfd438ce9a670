"""How much of a short text is found, in order, somewhere in a longer one.

n-grams forget an edit slowly: one changed word breaks n of them, and of an item of a dozen words little is left. In-order
matching (a weighted longest common subsequence within a window of about the item's length) loses only the word itself.
Words weigh by how rare they are, so that two questions of one mould ("find the ... of a given number") differ by what
they ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_MOST_WINDOWS = 8
"""Places of a text that are tried, those with most shared n-grams first."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Where a text is found."""

    fraction: float
    """Weight of the words that were found in order, of all weight."""
    first: int
    """First word found ..."""
    last: int
    """... and last, in the longer text."""


def rarity(texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Return the weight of each word of each text: log(1 + texts / texts with the word), float64 [num_words] each."""
    having = Counter(word for words in texts for word in set(words))
    return [np.log1p(np.array([len(texts) / having[word] for word in words])) for words in texts]


def align(item: Sequence[str], weights: np.ndarray, text: Sequence[str], ngram: int, least: float) -> Alignment | None:
    """Return where `item` is best found in `text`, or None where less than `least` of its weight is.

    Only places that share an n-gram with the item are tried.

    Args:
        item: words to find.
        weights: float64 [len(item)].
        text: words to search.
        ngram: words per n-gram.
        least: fraction of the weight that has to be found.
    """
    place_in_item = {tuple(item[at : at + ngram]): at for at in range(len(item) - ngram + 1)}
    step = max(1, len(item) // 4)
    starts: Counter[int] = Counter()
    for at in range(len(text) - ngram + 1):
        found = place_in_item.get(tuple(text[at : at + ngram]))
        if found is not None:
            starts[(at - found) // step] += 1
    slack = max(3, len(item) // 5)
    best = None
    for start, _ in starts.most_common(_MOST_WINDOWS):
        begin = max(0, start * step - slack)
        found_here = align_window(item, weights, text[begin : (start + 1) * step + len(item) + slack], least)
        if found_here and (best is None or found_here.fraction > best.fraction):
            best = Alignment(found_here.fraction, begin + found_here.first, begin + found_here.last)
    return best


def align_window(item: Sequence[str], weights: np.ndarray, window: Sequence[str], least: float) -> Alignment | None:
    """Return how `item` is found in order in `window`, or None where less than `least` of its weight is."""
    needed = least * float(weights.sum())
    there = set(window)
    if sum(weight for word, weight in zip(item, weights.tolist(), strict=True) if word in there) < needed:
        return None
    found = _common_weight(item, weights, window)
    if found[-1] < needed:
        return None
    last = int(np.argmax(found >= found[-1] - 1e-9))
    backwards = _common_weight(item[::-1], weights[::-1], window[last::-1])
    first = last - int(np.argmax(backwards >= backwards[-1] - 1e-9))
    return Alignment(float(found[-1] / weights.sum()), first, last)


def _common_weight(item: Sequence[str], weights: np.ndarray, window: Sequence[str]) -> np.ndarray:
    """Return the weight of the longest common subsequence of `item` and each prefix of `window`, [len(window)]."""
    codes: dict[str, int] = {}
    window_codes = np.array([codes.setdefault(word, len(codes)) for word in window])
    best = np.zeros(len(window) + 1)
    for word, weight in zip(item, weights.tolist(), strict=True):
        if word in codes:
            taken = best[:-1] + weight * (window_codes == codes[word])
            best[1:] = np.maximum.accumulate(np.maximum(best[1:], taken))
    return best[1:]

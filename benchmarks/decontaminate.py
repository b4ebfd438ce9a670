"""How surely decontamination finds what was planted, and how often it takes what was not: on real evaluation sets and real chats.

Every item of every set is put between two unrelated texts, each of its words replaced with a given probability by a word drawn
from those texts; it counts as found if the row goes. Then rows that nobody planted anything in are searched for the items of all
sets. Sets whose items were looked at while thresholds were chosen say less than others: name them apart.

    python -m benchmarks.decontaminate --sets FILE ... --chats FILE [--clean FILE ...] [--seeds 3] [--most 250]

All files are in any layout that `decontaminate.against` reads. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from curation import decontaminate
from curation.decontaminate import DecontaminateSettings, words_of
from curation.evaluation_sets import EvaluationItem, load_items
from curation.funnel import Drop

EDITED = (0.0, 0.05, 0.1)
"""Shares of words that are replaced."""

AROUND_CHARS = 1500
"""Length of the text on either side of an item, at most."""


def main() -> None:
    arguments = _parse()
    settings = DecontaminateSettings()
    sets = {path.stem if path.stem != "test" else path.parent.name: _items(path, arguments) for path in arguments.sets}
    chats = [item.text[:AROUND_CHARS] for item in load_items([arguments.chats])]
    vocabulary = words_of(" ".join(chats))
    everything = [item for items in sets.values() for item in items]
    print("| set | items | words, median | " + " | ".join(f"{edited:.0%} edited" for edited in EDITED) + " |")
    print("|---" * (3 + len(EDITED)) + "|")
    figures: dict[str, Any] = defaultdict(dict)
    for name, items in sets.items():
        for edited in EDITED:
            found = [_recall(items, edited, seed, chats, vocabulary, settings) for seed in range(arguments.seeds)]
            figures[name][f"{edited:.2f}"] = round(float(np.mean(found)), 4)
        words = float(np.median([len(words_of(item.text)) for item in items]))
        shares = " | ".join(f"{figures[name][f'{edited:.2f}']:.3f}" for edited in EDITED)
        print(f"| {name} | {len(items)} | {words:.0f} | {shares} |", flush=True)
        figures[name] |= {"items": len(items), "median_words": words}
    clean = {}
    for path in arguments.clean:
        rows = [item.text for item in _items(path, arguments)]
        dropped = _search(rows, everything, settings)
        clean[path.stem] = {"rows": len(rows), "dropped": len(dropped)}
        print(f"{path.stem}: {len(dropped)} of {len(rows)} rows go, though nothing was planted")
        for drop in dropped[: arguments.show]:
            print(f"  {drop.collided_with} {drop.score}: {drop.detail!r} in {rows[drop.row][:160]!r}")
    print(json.dumps({"sets": figures, "clean": clean, "seeds": arguments.seeds}))


def _items(path: Path, arguments: argparse.Namespace) -> list[EvaluationItem]:
    """Return items that are looked for at all, a sample of them where there are more than wanted."""
    least = DecontaminateSettings().least_words
    items = [item for item in load_items([path]) if len(words_of(item.text)) >= least]
    return random.Random(1).sample(items, arguments.most) if len(items) > arguments.most else items


def _recall(
    items: list[EvaluationItem],
    edited: float,
    seed: int,
    chats: list[str],
    vocabulary: list[str],
    settings: DecontaminateSettings,
) -> float:
    """Return the share of items that are found, each planted into a row of its own."""
    draw = random.Random(f"{edited} {seed}")
    rows = []
    for item in items:
        before, after = draw.sample(chats, 2)
        lines = [
            " ".join(draw.choice(vocabulary) if draw.random() < edited else word for word in line.split(" "))
            for line in item.text.split("\n")
        ]
        rows.append("\n".join([before, *lines, after]))
    return len({drop.row for drop in _search(rows, items, settings)}) / len(items)


def _search(rows: list[str], items: list[EvaluationItem], settings: DecontaminateSettings) -> list[Drop]:
    """Return the rows that go."""
    import polars as pl

    positions = np.arange(len(rows))
    return decontaminate.remove(
        pl.DataFrame(), positions, lambda some: (rows[row] for row in some.tolist()), items, settings
    ).dropped


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sets", type=Path, nargs="+", required=True, help="evaluation sets whose items are planted")
    parser.add_argument("--chats", type=Path, required=True, help="texts that items are planted between")
    parser.add_argument("--clean", type=Path, nargs="*", default=[], help="rows without items")
    parser.add_argument("--seeds", type=int, default=3, help="draws of edits")
    parser.add_argument("--most", type=int, default=250, help="items of a set, and rows of a file")
    parser.add_argument("--show", type=int, default=3, help="rows without items that go, shown")
    return parser.parse_args()


if __name__ == "__main__":
    main()

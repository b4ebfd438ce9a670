"""Labels from a person: a few rows of each source, each given a domain, as a prior for the classifier.

Twenty labels a source are worth more than any model: sources are far more uniform than the web is. Labels are appended as they are given,
so that stopping loses nothing, and rows that have one are not asked about again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import polars as pl

from curation.classify import source_priors
from curation.corpus import Corpus
from curation.facts import DOMAINS
from curation.inspection import row_text, select

QUESTION = (
    "domain? [enter = {guess}, "
    + ", ".join(f"{number} {name}" for number, name in enumerate(DOMAINS, start=1))
    + ", s skip, q quit] "
)


def unlabelled(corpus: Corpus, path: Path, per_source: int) -> Iterator[int]:
    """Yield positions of rows to label: of each source whose rows carry no domain, until it has `per_source` labels."""
    labels = _labels(path)
    done = {label["id"] for label in labels}
    counts = Counter(label["source"] for label in labels)
    bare = corpus.facts.filter(
        pl.col("domain_manifest").is_null() & ~pl.col("source").is_in(list(corpus.settings.source_domains))
    )
    open_ids = set(bare["id"])
    for source in bare["source"].unique(maintain_order=True):
        candidates = select(corpus, count=corpus.facts.height, source=source)
        left = [place for place in candidates if (id_ := corpus.facts["id"][place]) in open_ids and id_ not in done]
        yield from left[: max(0, per_source - counts[source])]


def label(corpus: Corpus, path: Path, per_source: int, ask: Callable[[str], str], show: Callable[[str], None]) -> int:
    """Ask for the domain of rows and append the answers to `path`; return how many were given.

    Raises:
        ValueError: `path` holds something else than labels.
    """
    given = 0
    if path.exists():
        source_priors(path, DOMAINS)  # reads it, so that a wrong file is refused before it is added to
    for position in unlabelled(corpus, path, per_source):
        fact = corpus.facts.row(position, named=True)
        show(row_text(next(corpus.rows([position])), fact))
        answer = _answer(ask, fact["domain_predicted"])
        if answer == "q":
            break
        if answer == "s":
            continue
        with path.open("ab") as file:
            file.write(orjson.dumps({"id": fact["id"], "source": fact["source"], "domain": answer}) + b"\n")
        given += 1
    return given


def _answer(ask: Callable[[str], str], guess: str) -> str:
    """Return a domain, `s` or `q`; ask again until the answer is one of them."""
    while True:
        said = ask(QUESTION.format(guess=guess)).strip().lower()
        if said in ("s", "q", *DOMAINS):
            return said
        if not said and guess in DOMAINS:
            return guess
        if said.isdigit() and 1 <= int(said) <= len(DOMAINS):
            return DOMAINS[int(said) - 1]


def _labels(path: Path) -> list[dict[str, str]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []

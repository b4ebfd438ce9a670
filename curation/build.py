"""`curate build`: completions to a set, step by step, with a funnel that counts every row once.

    read -> filter -> dedupe -> decontaminate -> tokenise -> hold out -> balance -> deal -> write

Domains are known once a row has been read. Tokenising comes before balancing because shares are of the tokens that
training will see, cut and rendered, and not of an estimate. Rows are held out before balancing so that no balance can train on them.

Steps are pure; this module strings them together. Each leaves its outcome in a hidden workspace beside the set, so a killed build goes on
from the last finished step; the set appears by one rename. Neither the number of workers nor the cut of the input into shards
changes a byte of it.
"""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import BaseModel

import curation.recipe as recipes
from curation import balance, decontaminate, dedupe, filters, heldout
from curation.arrow_sets import next_free
from curation.assembly import Decided, labels_of, write_set
from curation.corpus import Corpus, open_corpus
from curation.documents import Documents
from curation.encoders import Choice
from curation.evaluation_sets import EvaluationItem, load_items
from curation.funnel import Drop, Funnel, Outcome
from curation.options import BuildOptions
from curation.reading_pool import read_over_ray
from curation.recipe import Recipe
from curation.target import Origin, find_origin
from curation.tokenizer_pool import tokenize_corpus
from curation.workspace import Workspace, open_workspace
from curation.writing import Labels

Progress = Callable[[str, int, int], None]
"""Called with (step, units done, units in all)."""

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Built:
    """A finished set."""

    folder: Path
    card: dict[str, Any]
    """`set.json`."""
    resumed: tuple[str, ...]
    """Steps whose result an earlier build had left."""
    encoder: Choice | None
    """What encoded the rows without ids; None where there were none."""


def build(options: BuildOptions, progress: Progress = lambda step, done, total: None) -> Built:
    """Build a set.

    Raises:
        ValueError: input, recipe or output cannot be used, or no row is left; one line that says what to change.
            A full disk is one of these: nothing is visible then, and the same command goes on from there.
    """
    recipe = _resolve(options)
    origin = find_origin(options.input, options.manifest)
    items = load_items(recipe.decontaminate.against)
    out = options.out or next_free(Path())
    try:
        with open_workspace(out) as workspace:
            return _build(options, recipe, origin, items, workspace, progress)
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        where = error.filename or out.parent
        raise ValueError(f"cannot write {where}: {error.strerror}; {out} was not made, run again to go on") from error


def _build(
    options: BuildOptions,
    recipe: Recipe,
    origin: Origin,
    items: list[EvaluationItem],
    workspace: Workspace,
    progress: Progress,
) -> Built:
    reading = recipe.reading.model_copy(update={"source_domains": origin.source_domains})
    if options.pool == "ray":
        read_over_ray(options.input, options.cache, reading, options.workers)
    corpus = open_corpus(
        options.input,
        settings=reading,
        cache=options.cache,
        workers=options.workers,
        progress=lambda done, total: progress("read", done, total),
    )
    if not corpus.facts.height:
        raise ValueError(f"{options.input} holds no completion that can be read; see {corpus.rejected}")
    return _Build(recipe, origin, corpus, items, workspace, options, progress).run()


class _Build:
    """One build: what it works on, and the funnel as it fills."""

    def __init__(
        self,
        recipe: Recipe,
        origin: Origin,
        corpus: Corpus,
        items: list[EvaluationItem],
        workspace: Workspace,
        options: BuildOptions,
        progress: Progress,
    ) -> None:
        self.recipe, self.origin, self.corpus, self.items, self.workspace = recipe, origin, corpus, items, workspace
        self.workers, self.pool, self.progress = options.workers, options.pool, progress
        self.funnel = Funnel(corpus.facts.height)
        self.dropped: list[tuple[str, list[Drop]]] = []
        self.notes: list[str] = []

    def run(self) -> Built:
        recipe, workspace = self.recipe, self.workspace
        rows = np.arange(self.corpus.facts.height)
        read = [self.corpus.digest, self.origin.source_domains, self.origin.licenses_by_source]
        rows = self._step("filter", [*read, _json(recipe.filters)], rows, self._filter)
        rows = self._step("deduplicate", _json(recipe.dedupe), rows, self._deduplicate)
        against = [_json(recipe.decontaminate), [item.text for item in self.items]]
        rows = self._step("decontaminate", against, rows, self._decontaminate)
        folder = workspace.subfolder("tokens", [_json(recipe.tokenization), self.origin.target, self.origin.tokenizer])
        found = tokenize_corpus(
            self.corpus, rows, self.origin, recipe.tokenization, folder, self.workers, self.progress, self.pool
        )
        tokenized = found.documents
        lost = [drop.row for drop in tokenized.dropped]
        rows = self._step("tokenise", None, rows, lambda r: Outcome(r[~np.isin(r, lost)], tokenized.dropped))
        chosen_by = [_json(recipe.heldout), recipe.seed]
        rows = self._step("hold out", chosen_by, rows, lambda r: self._hold_out(r, tokenized))
        labels = labels_of(self.corpus.facts, tokenized)
        training, held = self._documents(tokenized, rows)
        targets = (recipe.domains or self.origin.domains) if recipe.balanced else {}
        if recipe.balanced:
            training = self._balance(tokenized, labels, training, targets)
        if not len(training):
            raise ValueError(f"no row is left to train on; {self._most_drops()}")
        decided = Decided(
            tokenized, labels, training, held, self.funnel, self.dropped, self.notes, targets, found.tokenizer
        )
        folder = workspace.subfolder("set", _json(recipe))
        card = write_set(folder, workspace.out.name, decided, self.corpus, self.origin, recipe, self.progress)
        workspace.publish(folder)
        return Built(workspace.out, card, tuple(workspace.resumed), found.choice)

    def _step(self, name: str, goes_in: Any, rows: np.ndarray, compute: Callable[[np.ndarray], Outcome]) -> np.ndarray:
        """Run a step, or take what an interrupted build left of it; count it; return the rows it kept."""
        self.progress(name, 0, 1)
        outcome = self.workspace.outcome(name.replace(" ", "_"), goes_in, lambda: compute(rows))
        self.funnel.add(name, rows, outcome)
        self.dropped.append((name, [drop for drop in outcome.dropped if drop.reason != heldout.REASON]))
        self.notes.extend(outcome.notes)
        self.progress(name, 1, 1)
        return outcome.kept

    def _documents(self, tokenized: Documents, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the documents of the rows to train on, and of the others; earlier turns that other rows hold are left out."""
        distinct = tokenized.distinct()
        is_training = np.isin(tokenized.row[distinct], rows)
        if len(distinct) != len(np.unique(tokenized.row)):
            self.funnel.steps.append(("turns to documents", int(is_training.sum()), {}))
        if repeated := len(tokenized) - len(distinct):
            self.notes.append(f"{repeated:,} earlier turns are rows of their own as well, and stand once")
        return distinct[is_training], distinct[~is_training]

    def _filter(self, rows: np.ndarray) -> Outcome:
        return filters.apply(
            self.corpus.facts,
            rows,
            self.recipe.filters,
            licenses_by_source=self.origin.licenses_by_source,
            prompts=self.corpus.prompts,
            completions=self.corpus.completions,
        )

    def _deduplicate(self, rows: np.ndarray) -> Outcome:
        settings = self.recipe.dedupe
        texts = {"prompt": self.corpus.prompts, "completion": self.corpus.completions, "both": self._whole_texts}
        return dedupe.remove(
            self.corpus.facts, rows, self.corpus.signatures, texts[settings.scope], settings, self.corpus.settings
        )

    def _whole_texts(self, rows: np.ndarray) -> Iterator[str]:
        pairs = zip(self.corpus.prompts(rows), self.corpus.completions(rows), strict=True)
        return (f"{prompt}\n{completion}" for prompt, completion in pairs)

    def _decontaminate(self, rows: np.ndarray) -> Outcome:
        return decontaminate.remove(self.corpus.facts, rows, self._whole_texts, self.items, self.recipe.decontaminate)

    def _hold_out(self, rows: np.ndarray, tokenized: Documents) -> Outcome:
        clusters = dedupe.clusters(self.corpus.facts, rows, self.corpus.signatures, self.recipe.dedupe)
        first = np.unique(tokenized.row, return_index=True)[1]
        clusters = heldout.join_conversations(clusters, tokenized.opening[first])
        return heldout.hold_out(self.corpus.facts, rows, clusters, self.recipe.heldout, seed=self.recipe.seed)

    def _balance(
        self, tokenized: Documents, labels: Labels, training: np.ndarray, targets: dict[str, float]
    ) -> np.ndarray:
        """Return the documents of a balanced mix; one that repeats stands there as often as it repeats."""
        if not targets:
            raise ValueError(
                "--balance needs target shares: give --domains code=20,math=30, or --manifest with `domains`, or build without"
            )
        languages = self.recipe.languages or self.origin.languages
        table = self.corpus.facts[tokenized.row].with_columns(
            pl.Series("id", labels.id),
            pl.Series("prompt_tokens", tokenized.boundary),
            pl.Series("completion_tokens", tokenized.length - tokenized.boundary),
        )
        kept = self._step(
            "balance",
            [_json(self.recipe.balance), targets, languages],
            training,
            lambda rows: balance.select(table, rows, targets, self.recipe.balance, languages or None),
        )
        # From here on a drop names a document; the file of dropped rows names the row it came from.
        step, drops = self.dropped.pop()
        named = [dataclasses.replace(drop, row=int(tokenized.row[drop.row])) for drop in drops]
        self.dropped.append((step, named))
        return kept

    def _most_drops(self) -> str:
        """Say which step took most of the rows."""
        step, drops = max(self.dropped, key=lambda item: len(item[1]))
        return f"`{step}` dropped {len(drops):,} of {self.funnel.num_rows:,} ({', '.join(sorted({d.reason for d in drops})[:4])})"


def _resolve(options: BuildOptions) -> Recipe:
    """Return the recipe with what the command line says over it."""
    overrides: dict[str, Any] = recipes.parse_assignments(options.set)
    given = {
        "domains": recipes.parse_shares(options.domains) if options.domains is not None else None,
        "balanced": True if options.balance or options.domains is not None else None,
        "tokenization.tokenizer": options.tokenizer,
        "tokenization.max_seq_len": options.max_seq_len,
        "num_shards": options.shards,
        "heldout.frac": options.heldout_frac,
        "seed": options.seed,
        "balance.seed": options.seed,
    }
    return recipes.load(options.recipe, overrides | {name: value for name, value in given.items() if value is not None})


def _json(settings: BaseModel) -> dict[str, Any]:
    return settings.model_dump(mode="json")

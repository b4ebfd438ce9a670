"""`curate build`: completions to a set, step by step, with a funnel that counts every row once.

    read -> filter -> dedupe -> decontaminate -> tokenise -> hold out -> balance -> deal -> write

Domains are known once a row has been read. Tokenising comes before balancing because shares are of the tokens that
training will see, cut and rendered, and not of an estimate. Rows are held out before balancing so that no balance can train on them.

Steps are pure; this module strings them together. Each leaves its outcome in a hidden workspace beside the set, so a killed build goes on
from the last finished step; the set appears by one rename. Neither the number of workers nor the cut of the input into shards
changes a byte of it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import curation.recipe as recipes
from curation import balance, decontaminate, dedupe, filters, heldout, set_card
from curation.arrow_sets import HELDOUT, SET_CARD, next_free, shard_name
from curation.corpus import Corpus, open_corpus
from curation.documents import Documents
from curation.encoders import Choice
from curation.evaluation_sets import EvaluationItem, load_items
from curation.funnel import Drop, Funnel, Outcome
from curation.options import BuildOptions
from curation.recipe import Recipe
from curation.sharding import deal, hash_keys
from curation.target import Origin, find_origin
from curation.tokenizer_pool import TokenizedCorpus, tokenize_corpus
from curation.workspace import Workspace, open_workspace
from curation.writing import Labels, WrittenShard, write_folder_cards, write_shard
from datagen import shards

Progress = Callable[[str, int, int], None]
"""Called with (step, units done, units in all)."""

_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class Built:
    """A finished set."""

    folder: Path
    card: dict[str, Any]
    """`set.json`."""
    resumed: bool
    """Whether the build went on with one that had been interrupted."""
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
    corpus = open_corpus(
        options.input,
        settings=recipe.reading.model_copy(update={"source_domains": origin.source_domains}),
        cache=options.cache,
        workers=options.workers,
        progress=lambda done, total: progress("read", done, total),
    )
    if not corpus.facts.height:
        raise ValueError(f"{options.input} holds no completion that can be read; see {corpus.rejected}")
    goes_in = [recipe.model_dump(mode="json"), corpus.digest, origin.describe(), [item.text for item in items]]
    resumed = workspace.begin(set_card.digest(goes_in))
    return _Build(recipe, origin, corpus, items, workspace, options.workers, progress).run(resumed)


class _Build:
    """One build: what it works on, and the funnel as it fills."""

    def __init__(
        self,
        recipe: Recipe,
        origin: Origin,
        corpus: Corpus,
        items: list[EvaluationItem],
        workspace: Workspace,
        workers: int,
        progress: Progress,
    ) -> None:
        self.recipe, self.origin, self.corpus, self.items, self.workspace = recipe, origin, corpus, items, workspace
        self.workers, self.progress = workers, progress
        self.funnel = Funnel(corpus.facts.height)
        self.dropped: list[tuple[str, list[Drop]]] = []
        self.notes: list[str] = []
        self.tokenized_by: TokenizedCorpus

    def run(self, resumed: bool) -> Built:
        facts, recipe = self.corpus.facts, self.recipe
        rows = self._step("filter", np.arange(facts.height), self._filter)
        rows = self._step("deduplicate", rows, self._deduplicate)
        rows = self._step("decontaminate", rows, self._decontaminate)
        found = tokenize_corpus(
            self.corpus, rows, self.origin, recipe.tokenization, self.workspace.tokens, self.workers, self.progress
        )
        self.tokenized_by, tokenized = found, found.documents
        lost = {drop.row for drop in tokenized.dropped}
        rows = self._step("tokenise", rows, lambda r: Outcome(r[~np.isin(r, list(lost))], tokenized.dropped))
        rows = self._step("hold out", rows, lambda r: self._hold_out(r, tokenized))
        labels = _labels(facts, tokenized)
        distinct = tokenized.distinct()
        is_training = np.isin(tokenized.row[distinct], rows)
        training, held = distinct[is_training], distinct[~is_training]
        if len(distinct) != len(np.unique(tokenized.row)):
            self.funnel.steps.append(("turns to documents", len(training), {}))
        if len(distinct) < len(tokenized):
            self.notes.append(
                f"{len(tokenized) - len(distinct):,} earlier turns are rows of their own as well, and stand once"
            )
        if recipe.balanced:
            training = self._balance(facts, tokenized, labels, training)
        if not len(training):
            raise ValueError(f"no row is left to train on; {self._most_drops()}")
        return self._write(tokenized, labels, training, held, resumed)

    def _step(self, name: str, rows: np.ndarray, compute: Callable[[np.ndarray], Outcome]) -> np.ndarray:
        """Run a step, or take what an interrupted build left of it; count it; return the rows it kept."""
        self.progress(name, 0, 1)
        outcome = self.workspace.outcome(name.replace(" ", "_"), lambda: compute(rows))
        self.funnel.add(name, rows, outcome)
        self.dropped.append((name, [drop for drop in outcome.dropped if drop.reason != heldout.REASON]))
        self.notes.extend(outcome.notes)
        self.progress(name, 1, 1)
        return outcome.kept

    def _filter(self, rows: np.ndarray) -> Outcome:
        return filters.apply(
            self.corpus.facts, rows, self.recipe.filters, licenses_by_source=self.origin.licenses_by_source
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

    def _balance(self, facts: pl.DataFrame, tokenized: Documents, labels: Labels, training: np.ndarray) -> np.ndarray:
        """Return the documents of a balanced mix; one that repeats stands there as often as it repeats."""
        targets = self.recipe.domains or self.origin.domains
        if not targets:
            raise ValueError(
                "--balance needs target shares: give --domains code=20,math=30, or --manifest with `domains`, or build without"
            )
        table = facts[tokenized.row].with_columns(
            pl.Series("id", labels.id),
            pl.Series("prompt_tokens", tokenized.boundary),
            pl.Series("completion_tokens", tokenized.length - tokenized.boundary),
        )
        kept = self._step(
            "balance",
            training,
            lambda rows: balance.select(
                table, rows, targets, self.recipe.balance, self.recipe.languages or self.origin.languages or None
            ),
        )
        # From here on a drop names a document; the file of dropped rows names the row it came from.
        step, drops = self.dropped.pop()
        rows = [Drop(int(tokenized.row[d.row]), d.reason, d.collided_with, d.score, d.detail) for d in drops]
        self.dropped.append((step, rows))
        return kept

    def _write(
        self, tokenized: Documents, labels: Labels, training: np.ndarray, held: np.ndarray, resumed: bool
    ) -> Built:
        """Write shards, cards and the list of drops, `set.json` last, and make the set visible."""
        folder, recipe = self.workspace.set, self.recipe
        name = self.workspace.out.name
        trained = self._write_part(folder, tokenized, labels, training, recipe.num_shards, "train")
        held_part = None
        if len(held):
            (folder / HELDOUT).mkdir(exist_ok=True)
            held_part = self._write_part(folder / HELDOUT, tokenized, labels, held, 1, "heldout")
        set_card.write_dropped(folder / set_card.DROPPED, self.corpus.facts, self.dropped)
        if self.corpus.counts.rejected:
            shards.publish(folder / "rejected.jsonl", [self.corpus.rejected.read_bytes()])
        chosen = np.unique(training)
        cut = {"rows": int((tokenized.cut[chosen] > 0).sum()), "tokens": int(tokenized.cut[chosen].sum())}
        card = set_card.card(trained, held_part, self.funnel, cut, self._provenance())
        set_card.write_readme(folder, name, card)
        shards.write_card(folder / SET_CARD, card)
        self.workspace.publish()
        return Built(self.workspace.out, card, resumed, self.tokenized_by.choice)

    def _write_part(
        self, folder: Path, tokenized: Documents, labels: Labels, chosen: np.ndarray, num_shards: int, split: str
    ) -> set_card.Part:
        """Deal the documents at `chosen` to shards and write them with their folder's cards."""
        keys = hash_keys(_names_with_repeats(labels.id, chosen), seed=self.recipe.seed, purpose="order")
        _, domains = np.unique(np.array(labels.domain, dtype=object)[chosen].astype(str), return_inverse=True)
        dealt = deal(tokenized.length[chosen], domains, keys, num_shards)
        written: list[WrittenShard] = []
        for index, members in enumerate(dealt):
            path = folder / shard_name(index, num_shards)
            written.append(write_shard(path, tokenized, labels, chosen[members]))
            self.progress(f"write {split}", index + 1, num_shards)
        write_folder_cards(
            folder,
            num_shards,
            description=f"Prompts and completions as token ids ({split}), made by draftmill.",
            fingerprint=set_card.digest([shard.sha256 for shard in written])[:16],
            split=split,
        )
        return set_card.part(written, tokenized, labels, chosen)

    def _provenance(self) -> set_card.Provenance:
        counts, origin = self.corpus.counts, self.origin
        return set_card.Provenance(
            target=origin.target or _target_of(self.recipe),
            tokenizer={**self.tokenized_by.tokenizer, **origin.tokenizer},
            recipe=self.recipe.model_dump(mode="json"),
            input={
                "folder": str(self.corpus.folder),
                "digest": self.corpus.digest,
                "shards": len(self.corpus.shards),
                "lines": {
                    name: getattr(counts, name) for name in ("lines", "accepted", "repaired", "rejected", "blank")
                },
                "rejected": self.corpus.rejects,
                "run": origin.run,
            },
            target_shares=(self.recipe.domains or origin.domains) if self.recipe.balanced else {},
            notes=self.notes,
        )

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


def _target_of(recipe: Recipe) -> dict[str, Any] | None:
    """Return the target where only the recipe or the command line names one."""
    settings = recipe.tokenization
    if settings.tokenizer is None:
        return None
    local = Path(settings.tokenizer)
    model = str(local.resolve()) if local.is_dir() else settings.tokenizer
    return {
        "model": model,
        "chat_template_kwargs": settings.chat_template_kwargs,
        "trust_remote_code": settings.trust_remote_code,
    }


def _labels(facts: pl.DataFrame, tokenized: Documents) -> Labels:
    """Return what the set says of each document; a turn of a row's history is named after the row."""
    table = facts.select("id", pl.col("source", "domain").cast(pl.String))[tokenized.row]
    ids = [
        id_ if turn < 0 else f"{id_}#{turn}"
        for id_, turn in zip(table["id"].to_list(), tokenized.turn.tolist(), strict=True)
    ]
    return Labels(ids, table["source"].to_list(), table["domain"].to_list())


def _names_with_repeats(ids: Any, chosen: np.ndarray) -> list[str]:
    """Return a distinct name per chosen document: its id, and which repeat of it this is."""
    seen: dict[int, int] = {}
    names = []
    for index in chosen.tolist():
        seen[index] = seen.get(index, -1) + 1
        names.append(f"{ids[index]}\0{seen[index]}")
    return names

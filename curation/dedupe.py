"""Near-duplicate removal: exact copies, surplus rollouts, then near duplicates, each named with what it repeats.

Near duplicates are found by MinHash-LSH and verified by the exact Jaccard similarity of their word shingles. The pass is
greedy in plan order: the first of two stays, and a row goes only if it is itself similar enough to a row that stays.
There is no transitive closure, which on real data joins chains of ever less similar rows until a source is gone; where
closure is right, for keeping held-out prompts apart from training prompts, there is `clusters`.

The same prompt with another completion is a rollout and no duplicate (scope `prompt`); rollouts beyond a cap go.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, model_validator

from curation.copies import NEAR, STAYS, Scope, Verdict, first_of, judge_copies
from curation.facts import ReadingSettings
from curation.funnel import Outcome, StepRefused, Texts
from curation.lsh import Buckets, Signed, detection_probability, estimate
from curation.shingles import EMPTY_SIGNATURE, minhash, permutations, shingle_hashes
from curation.similarity import ShingleSets

LEAST_DETECTION = 0.9
"""Bands that find fewer pairs at the threshold than this are refused: libraries' optimal ones find 40% at 0.8."""

SLACK_DEVIATIONS = 4.0
"""A candidate is verified if its estimated similarity is at most this many standard deviations under the threshold; one
in 30,000 pairs right at the threshold is lost by it."""

SMALL_SOURCE_ROWS = 100
"""Sources with fewer rows may lose any share of them."""

_CHUNK_TEXTS = 1024
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class DedupeSettings(BaseModel):
    """What counts as the same, and how hard to look for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    scope: Scope = "prompt"
    """The text that is compared; `both` compares prompt and completion as one text."""
    threshold: float = Field(default=0.8, gt=0, le=1)
    """Jaccard similarity of word shingles from which a row is a near duplicate. On 5-word shingles 0.8 is about one
    word in fifty edited."""
    numbers: Literal["words", "mask", "distinct"] = "words"
    """Rows that differ only in numbers. `words`: a number is a word like any other, so that a word problem with other
    numbers is another problem, and a long text with another date is not. `mask`: digits do not tell texts apart.
    `distinct`: texts with different numbers are never near duplicates."""
    bands: int = Field(default=25, ge=1)
    """LSH bands; more find more."""
    rows_per_band: int = Field(default=5, ge=1)
    """Signature values per band; fewer find more."""
    max_completions_per_prompt: int | None = Field(default=4, ge=1)
    """Most rows with one and the same prompt, in plan order (scope `prompt`); None sets no cap."""
    max_source_loss: float = Field(default=0.9, gt=0, le=1)
    """Stop when a source of at least 100 rows would lose more than this fraction."""
    engine: Literal["draftmill", "datasketch"] = "draftmill"
    """What finds candidates: the vectorised buckets, or datasketch's MinHashLSH (slow; the reference)."""
    cluster_similarity: float = Field(default=0.7, gt=0, le=1)
    """Estimated similarity from which two prompts share a cluster, and so never a held-out and a training set."""

    @model_validator(mode="after")
    def _bands_find_what_counts(self) -> DedupeSettings:
        found = detection_probability(self.threshold, self.bands, self.rows_per_band)
        if found < LEAST_DETECTION:
            raise ValueError(
                f"{self.bands} bands of {self.rows_per_band} rows find {found:.0%} of the pairs at similarity "
                f"{self.threshold:g}, at least {LEAST_DETECTION:.0%} are needed: use more bands or fewer rows per band"
            )
        return self

    def curve(self) -> list[tuple[float, float]]:
        """Return the S-curve: (similarity, probability that such a pair is found) in steps of 0.05."""
        steps = [step / 20 for step in range(8, 21)]
        return [(similarity, detection_probability(similarity, self.bands, self.rows_per_band)) for similarity in steps]


def remove(
    facts: pl.DataFrame,
    positions: np.ndarray,
    signatures: np.ndarray | None,
    texts: Texts,
    settings: DedupeSettings,
    reading: ReadingSettings,
) -> Outcome:
    """Return the rows that repeat no earlier one, and for every other row what it repeats and how closely.

    Args:
        facts: the facts table.
        positions: int64 positions of the rows to compare, ascending: plan order.
        signatures: uint32 [len(facts), num_perm] of the whole corpus, made under `reading`; used where they describe
            the text that `settings` compares, else (or if None) signatures are made here from `texts`.
        texts: the text of `settings.scope` by position; asked for candidates only, unless signatures have to be made.
        reading: the settings that facts and signatures were made with; its shingles are the ones that are compared.

    Raises:
        StepRefused: a source would lose more than `max_source_loss` of its rows.
        ValueError: signatures are too short for the bands.
    """
    rows = facts.select("id", "source", "prompt_hash", "completion_hash")[positions]
    leader_of, verdict = judge_copies(rows, settings.scope, settings.max_completions_per_prompt)
    leaders = np.flatnonzero(leader_of == np.arange(len(rows)))
    sets = ShingleSets(texts, words=reading.shingle_words, mask_digits=settings.numbers == "mask")
    signed = _signatures(signatures, positions[leaders], texts, settings, reading)
    near_to, similarity = _near(signed, positions[leaders], sets, texts, settings)
    verdict.near(leaders, np.where(near_to >= 0, leaders[near_to], -1), similarity)
    _follow_leaders(verdict, leader_of, positions, sets, settings.threshold)
    _guard_sources(rows["source"], verdict, settings)
    stays = verdict.reason == STAYS
    return Outcome(positions[stays], verdict.drops(positions, rows["id"]), [_curve_note(settings)])


def clusters(
    facts: pl.DataFrame, positions: np.ndarray, signatures: np.ndarray, settings: DedupeSettings
) -> np.ndarray:
    """Return a cluster for each row, int64: the first of `positions` in it. Rows that resemble each other share one.

    Here closure is right: a held-out prompt must have no near duplicate on the training side, nor may that one have
    another. Edges are equal prompts, and estimated similarities of at least `cluster_similarity`; a wrong edge costs a
    little choice in the split, a missing one would leak.

    Args:
        signatures: uint32 [len(facts), num_perm] of the whole corpus's prompts.
    """
    leader_of = first_of(facts.select("prompt_hash")[positions])
    leaders = np.flatnonzero(leader_of == np.arange(len(positions)))
    signed = Signed(signatures, positions[leaders])
    buckets = Buckets(signed, settings.bands, settings.rows_per_band)
    root = np.arange(len(leaders))
    everyone = np.ones(len(leaders), dtype=bool)
    for first, end in buckets.blocks():
        late, early = buckets.pairs(first, end, everyone)
        similar = estimate(signed, late, early) >= settings.cluster_similarity
        _join(root, late[similar], early[similar])
    cluster_of_leader = np.full(len(positions), -1, dtype=np.int64)
    cluster_of_leader[leaders] = leaders[root]
    return positions[cluster_of_leader[leader_of]]


def _signatures(
    signatures: np.ndarray | None,
    positions: np.ndarray,
    texts: Texts,
    settings: DedupeSettings,
    reading: ReadingSettings,
) -> Signed:
    """Return signatures of the text that is compared, one per position."""
    mask_digits = settings.numbers == "mask"
    needed = settings.bands * settings.rows_per_band
    if signatures is not None and (reading.sign, reading.digits == "mask") == (settings.scope, mask_digits):
        if signatures.shape[1] < needed:
            raise ValueError(
                f"{settings.bands} bands of {settings.rows_per_band} rows need {needed} permutations, signatures have "
                f"{signatures.shape[1]}: raise `num_perm` of the reading settings or use fewer bands"
            )
        return Signed(signatures, positions)
    signed = np.empty((len(positions), max(needed, reading.num_perm)), dtype=np.uint32)
    for at in range(0, len(positions), _CHUNK_TEXTS):
        part = list(texts(positions[at : at + _CHUNK_TEXTS]))
        hashes, starts = shingle_hashes(part, words=reading.shingle_words, mask_digits=mask_digits)
        signed[at : at + _CHUNK_TEXTS] = minhash(hashes, starts, num_perm=signed.shape[1], seed=reading.seed)
    return Signed(signed)


def _near(
    signed: Signed, positions: np.ndarray, sets: ShingleSets, texts: Texts, settings: DedupeSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row the earlier row that stays and that it is near to (-1 for none), and their similarity."""
    verify = _Verifier(positions, sets, texts, settings)
    if settings.engine == "datasketch":
        return _near_by_datasketch(signed, verify, settings)
    near_to, similarity = np.full(len(positions), -1, dtype=np.int64), np.ones(len(positions))
    deviation = float(np.sqrt(settings.threshold * (1 - settings.threshold) / signed.num_perm))
    least = settings.threshold - SLACK_DEVIATIONS * deviation
    buckets = Buckets(signed, settings.bands, settings.rows_per_band)
    for first, end in buckets.blocks():
        late, early = buckets.pairs(first, end, near_to < 0)
        promising = estimate(signed, late, early) >= least
        _decide(late[promising], early[promising], near_to, similarity, verify)
    return near_to, similarity


def _decide(
    late: np.ndarray,
    early: np.ndarray,
    near_to: np.ndarray,
    similarity: np.ndarray,
    verify: _Verifier,
) -> None:
    """Decide the rows of one block greedily: in rounds, each compares with rows known to stay.

    A row is known to stay once every earlier candidate of it has gone or was compared in vain.
    """
    while len(late):
        open_rows = np.zeros(len(near_to), dtype=bool)
        open_rows[late] = True
        settled = ~open_rows[early]
        similar, score = verify(late[settled], early[settled])
        # Pairs are sorted by (late, early): the first similar one names the earliest row that stays.
        hit_late, hit_at = np.unique(late[settled][similar], return_index=True)
        near_to[hit_late] = early[settled][similar][hit_at]
        similarity[hit_late] = score[similar][hit_at]
        rest = ~settled & (near_to[late] < 0) & (near_to[early] < 0)
        late, early = late[rest], early[rest]


class _Verifier:
    """Says which pairs of rows are near duplicates, by their text."""

    def __init__(self, positions: np.ndarray, sets: ShingleSets, texts: Texts, settings: DedupeSettings) -> None:
        self._positions, self._sets, self._texts, self._settings = positions, sets, texts, settings

    def __call__(self, one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether each pair of rows is near (bool), and its similarity (float64)."""
        left, right = self._positions[one], self._positions[other]
        similarity = self._sets.jaccard(left, right)
        similar = similarity >= self._settings.threshold
        if self._settings.numbers == "distinct":
            similar[similar] = [
                _NUMBER.findall(a) == _NUMBER.findall(b)
                for a, b in zip(self._texts(left[similar]), self._texts(right[similar]), strict=True)
            ]
        return similar, similarity


def _near_by_datasketch(signed: Signed, verify: _Verifier, settings: DedupeSettings) -> tuple[np.ndarray, np.ndarray]:
    """Do what `_near` does with datasketch's index: one row after the other, rows that stay are inserted."""
    from datasketch import MinHash, MinHashLSH  # here: it loads scipy, and the default path does without

    index = MinHashLSH(num_perm=signed.num_perm, params=(settings.bands, settings.rows_per_band))
    affine = np.stack(permutations(signed.num_perm, seed=1))  # queries compare values and never permute
    near_to, similarity = np.full(len(signed), -1, dtype=np.int64), np.ones(len(signed))
    for row, values in enumerate(signed[slice(None)]):
        if (values == EMPTY_SIGNATURE).all():
            continue
        sketch = MinHash(hashvalues=values, permutations=affine, scheme="affine32")
        early = np.array(sorted(index.query(sketch)), dtype=np.int64)
        similar, score = verify(np.full(len(early), row), early)
        if similar.any():
            near_to[row], similarity[row] = early[similar][0], score[similar][0]
        else:
            index.insert(row, sketch, check_duplication=False)
    return near_to, similarity


def _follow_leaders(
    verdict: Verdict, leader_of: np.ndarray, positions: np.ndarray, sets: ShingleSets, threshold: float
) -> None:
    """Compare the copies and rollouts of each row that goes with the row that it is near to.

    Equal hashes mean equal letters and digits, not equal words ("no one", "noone"), so each is measured on its own; one
    that is not near stays.
    """
    followers = np.flatnonzero((verdict.reason[leader_of] == NEAR) & (leader_of != np.arange(len(leader_of))))
    of = verdict.of[leader_of[followers]]
    similarity = sets.jaccard(positions[followers], positions[of])
    verdict.near(followers, np.where(similarity >= threshold, of, -1), similarity)


def _guard_sources(sources: pl.Series, verdict: Verdict, settings: DedupeSettings) -> None:
    """Stop where a source would all but vanish."""
    table = pl.DataFrame({"source": sources.cast(pl.String), "goes": verdict.reason != STAYS})
    lost = (
        table.group_by("source")
        .agg(pl.len().alias("rows"), pl.col("goes").mean())
        .filter((pl.col("rows") >= SMALL_SOURCE_ROWS) & (pl.col("goes") > settings.max_source_loss))
    )
    for source, num_rows, frac in lost.sort("source").iter_rows():
        mine = np.flatnonzero((table["source"] == source).to_numpy() & table["goes"].to_numpy())
        to, times = Counter(table["source"].gather(verdict.of[mine]).to_list()).most_common(1)[0]
        raise StepRefused(
            f"dedupe: source {source!r} would lose {frac:.1%} of its {num_rows:,} rows, {times:,} of them to rows of "
            f"{to!r}: drop it from the manifest if it is a copy, else raise `threshold`, or allow it with "
            f"`max_source_loss` above {settings.max_source_loss:g}"
        )


def _join(root: np.ndarray, one: np.ndarray, other: np.ndarray) -> None:
    """Merge clusters along edges; `root` holds each row's smallest fellow and is updated in place."""
    while True:
        low = np.minimum(root[one], root[other])
        high = np.maximum(root[one], root[other])
        if (low == high).all():
            return
        np.minimum.at(root, high, low)
        while not np.array_equal(root, root[root]):
            root[:] = root[root]


def _curve_note(settings: DedupeSettings) -> str:
    """Say how likely pairs are found, around the threshold."""
    points = [f"{found:.1%} at {similarity:.2f}" for similarity, found in settings.curve() if 0.6 <= similarity <= 0.9]
    return f"{settings.bands} bands of {settings.rows_per_band} rows find pairs by similarity: {', '.join(points)}."

"""Near-duplicate removal is greedy, verified, in plan order, and finds what it says it finds."""

import random
import re

import numpy as np
import polars as pl
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from curation import dedupe, lsh
from curation.dedupe import DedupeSettings
from curation.facts import ReadingSettings
from curation.funnel import Drop, Funnel, Outcome, StepRefused
from curation.lsh import detection_probability
from curation.measure import normalised_hash
from curation.shingles import minhash, shingle_hashes

DEFAULTS, READING = DedupeSettings(), ReadingSettings()
WORDS = [f"w{n}" for n in range(5000)]


def remove(
    prompts: list[str], chosen: DedupeSettings = DEFAULTS, completions=None, sources=None, signatures=None
) -> Outcome:
    completions = completions or [f"answer {n}" for n in range(len(prompts))]
    facts = pl.DataFrame(
        {
            "id": [f"row-{n}" for n in range(len(prompts))],
            "source": sources or ["web"] * len(prompts),
            "prompt_hash": pl.Series([normalised_hash(text) for text in prompts], dtype=pl.UInt64),
            "completion_hash": pl.Series([normalised_hash(text) for text in completions], dtype=pl.UInt64),
        }
    )
    scoped = {
        "prompt": prompts,
        "completion": completions,
        "both": [f"{a}\n{b}" for a, b in zip(prompts, completions, strict=True)],
    }[chosen.scope]
    positions = np.arange(len(prompts))
    outcome = dedupe.remove(
        facts, positions, signatures, lambda rows: (scoped[row] for row in rows.tolist()), chosen, READING
    )
    Funnel(len(prompts)).add("dedupe", positions, outcome)
    return outcome


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[at : at + 5]) for at in range(max(len(words) - 4, 1))} if words else set()


def jaccard(one: str, other: str) -> float:
    a, b = shingles(one), shingles(other)
    return len(a & b) / len(a | b) if a | b else 0.0


def sentence(num_words: int, seed: int = 0) -> list[str]:
    return random.Random(seed).choices(WORDS, k=num_words)


def edited(words: list[str], *places: int) -> str:
    return " ".join("edited" if at in places else word for at, word in enumerate(words))


def test_a_near_duplicate_goes_and_names_what_it_repeats():
    words = sentence(100)
    prompts = [" ".join(words), " ".join(sentence(100, seed=1)), edited(words, 50)]
    (drop,) = remove(prompts).dropped
    assert drop == Drop(2, "near_duplicate", "row-0", round(91 / 101, 6))


def test_a_row_below_the_threshold_stays():
    words = sentence(100)
    prompts = [" ".join(words), edited(words, 10, 30, 50)]
    assert jaccard(*prompts) == 81 / 111
    assert remove(prompts).dropped == []
    assert len(remove(prompts, DedupeSettings(threshold=0.7, bands=40, rows_per_band=3)).dropped) == 1


def test_a_chain_is_no_cluster():
    words = sentence(100)
    a, b, c = edited(words), edited(words, 20), edited(words, 20, 40, 60)
    assert jaccard(a, b) > 0.8 and jaccard(b, c) >= 0.8 and jaccard(a, c) < 0.8
    assert [drop.row for drop in remove([a, b, c]).dropped] == [1]
    assert [drop.row for drop in remove([b, a, c]).dropped] == [1, 2]


def test_the_first_in_plan_order_stays():
    words = sentence(100)
    assert remove([edited(words, 50), " ".join(words)]).kept.tolist() == [0]


def test_exact_copies_are_told_apart_from_rollouts():
    outcome = remove(["Say hi.", "say  HI", "Say hi!"], completions=["hi", "Hi.", "hello"])
    assert outcome.dropped == [Drop(1, "exact_duplicate", "row-0", 1.0)]


def test_rollouts_beyond_the_cap_go():
    capped = DedupeSettings(max_completions_per_prompt=2)
    outcome = remove(["Say hi."] * 5, capped, completions=["a", "a", "b", "c", "c"])
    assert [(drop.row, drop.reason) for drop in outcome.dropped] == [
        (1, "exact_duplicate"),
        (3, "completions_per_prompt"),
        (4, "completions_per_prompt"),
    ]
    uncapped = DedupeSettings(max_completions_per_prompt=None)
    assert remove(["Say hi."] * 300, uncapped).dropped == []


def test_rollouts_follow_their_prompt():
    words = sentence(100)
    outcome = remove(
        [" ".join(words), edited(words, 50), edited(words, 50), edited(words, 50)], completions=list("abcc")
    )
    assert [(drop.row, drop.reason, drop.collided_with) for drop in outcome.dropped] == [
        (row, "near_duplicate", "row-0") for row in (1, 2, 3)
    ]


def test_a_copy_by_letters_that_is_not_near_by_words_stays():
    words = sentence(100)
    joined = "".join(word if at % 2 else f" {word}" for at, word in enumerate(edited(words, 50).split()))
    assert normalised_hash(joined) == normalised_hash(edited(words, 50))
    assert remove([" ".join(words), edited(words, 50), joined]).kept.tolist() == [0, 2]


def test_scope_completion_compares_answers():
    words = sentence(100)
    outcome = remove(
        ["one", "two", "three"],
        DedupeSettings(scope="completion"),
        completions=[" ".join(words), edited(words, 50), " ".join(words)],
    )
    assert [(drop.row, drop.reason) for drop in outcome.dropped] == [(1, "near_duplicate"), (2, "exact_duplicate")]


def test_scope_both_needs_the_whole_row_to_be_alike():
    question, answer = sentence(60), sentence(60, seed=1)
    prompts = [" ".join(question), " ".join(question), edited(question, 30)]
    completions = [" ".join(answer), " ".join(sentence(60, seed=2)), edited(answer, 30)]
    outcome = remove(prompts, DedupeSettings(scope="both"), completions=completions)
    assert [drop.row for drop in outcome.dropped] == [2]


def test_rows_without_words_are_not_alike():
    assert remove(["", "?!", "..."], DedupeSettings(), completions=["a", "a", "a"]).dropped == []


PROBLEM = "Natalia sold clips to {} of her friends in April and then she sold {} as many clips in May how many clips"
LONG = " ".join(f"w{n:x}" for n in range(200)) + " on day {} and then {}"


@pytest.mark.parametrize("numbers, expected", [("words", [3, 4]), ("mask", [1, 3, 4]), ("distinct", [4])])
def test_what_numbers_mean_is_a_choice(numbers, expected):
    prompts = [
        PROBLEM.format(48, 2),
        PROBLEM.format(72, 3),
        LONG.format(1, 1),
        LONG.format(1, 7),
        LONG.format(1, 1) + " indeed",
    ]
    assert [drop.row for drop in remove(prompts, DedupeSettings(numbers=numbers)).dropped] == expected


def test_a_source_that_would_vanish_stops_the_build():
    words = [sentence(60, seed=n) for n in range(100)]
    prompts = [" ".join(w) for w in words] + [edited(w, 30) for w in words]
    with pytest.raises(
        StepRefused, match="source 'copy' would lose 100.0% of its 100 rows, 100 of them to rows of 'web'"
    ):
        remove(prompts, sources=["web"] * 100 + ["copy"] * 100)
    allowed = DedupeSettings(max_source_loss=1.0)
    assert len(remove(prompts, allowed, sources=["web"] * 100 + ["copy"] * 100).dropped) == 100


def test_bands_that_miss_pairs_at_the_threshold_are_refused():
    with pytest.raises(ValidationError, match="9 bands of 13 rows find 40% of the pairs at similarity 0.8"):
        DedupeSettings(bands=9, rows_per_band=13)
    assert detection_probability(0.8, 25, 5) > 0.9999


def test_signatures_too_short_for_the_bands_are_refused():
    with pytest.raises(ValueError, match="25 bands of 5 rows need 125 permutations, signatures have 64"):
        remove(["a b c", "d e f"], signatures=np.zeros((2, 64), np.uint32))


@pytest.mark.parity
def test_datasketch_finds_the_same_candidates():
    prompts = corpus(150, seed=7)
    ours, theirs = (remove(prompts, DedupeSettings(engine=engine)) for engine in ("draftmill", "datasketch"))
    assert [(drop.row, drop.collided_with, drop.score) for drop in ours.dropped] == [
        (drop.row, drop.collided_with, drop.score) for drop in theirs.dropped
    ]
    assert len(ours.dropped) > 30


@pytest.mark.parity
def test_estimates_are_datasketchs():
    prompts = corpus(20, seed=3)
    hashes, starts = shingle_hashes(prompts)
    sketches = [MinHash(num_perm=125, hashfunc=int) for _ in prompts]
    for sketch, begin, end in zip(sketches, starts, starts[1:], strict=False):
        sketch.update_batch(hashes[begin:end].tolist())
    one, other = np.triu_indices(len(prompts), 1)
    expected = [sketches[a].jaccard(sketches[b]) for a, b in zip(one, other, strict=True)]
    estimates = lsh.estimate(lsh.Signed(minhash(hashes, starts, num_perm=125)), one, other)
    assert estimates == pytest.approx(expected, abs=1e-6)


def corpus(num_bases: int, seed: int) -> list[str]:
    """Texts of 30 to 120 words, each with up to three edited copies, shuffled."""
    rng = random.Random(seed)
    texts = []
    for base in range(num_bases):
        words = sentence(rng.randint(30, 120), seed=seed * 1000 + base)
        texts.append(" ".join(words))
        for _ in range(rng.randint(0, 3)):
            texts.append(edited(words, *rng.sample(range(len(words)), rng.randint(0, 4))))
    rng.shuffle(texts)
    return texts


def brute_force(prompts: list[str], threshold: float) -> list[int]:
    """Greedy by exact similarity with every row that stays."""
    kept: list[int] = []
    for row, prompt in enumerate(prompts):
        if not any(jaccard(prompt, prompts[earlier]) >= threshold for earlier in kept):
            kept.append(row)
    return kept


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.sampled_from([0.6, 0.8, 0.9]), st.sampled_from([1, 7, 1024]))
def test_the_result_is_that_of_comparing_everything(seed, threshold, block_rows):
    prompts = corpus(12, seed)
    chosen = DedupeSettings(threshold=threshold, bands=40, rows_per_band=3, max_completions_per_prompt=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lsh, "BLOCK_ROWS", block_rows)
        outcome = remove(prompts, chosen)
    assert outcome.kept.tolist() == brute_force(prompts, threshold)
    kept = {f"row-{row}" for row in outcome.kept.tolist()}
    for drop in outcome.dropped:
        assert drop.collided_with in kept
        if drop.reason == "near_duplicate":
            similarity = jaccard(prompts[drop.row], prompts[int(drop.collided_with.removeprefix("row-"))])
            assert drop.score == pytest.approx(similarity, abs=1e-6) and similarity >= threshold


def test_a_big_cluster_in_small_blocks_leaves_one(monkeypatch):
    monkeypatch.setattr(lsh, "MAX_PAIRS", 500)
    words = sentence(200)
    prompts = [edited(words, n % 200) + f" tail{n}" for n in range(400)]
    assert remove(prompts, DedupeSettings(max_source_loss=1.0)).kept.tolist() == [0]


def test_clusters_join_chains_and_rollouts():
    words = sentence(100)
    a, b, c = edited(words), edited(words, 20, 40), edited(words, 20, 40, 60, 80)
    prompts = [a, " ".join(sentence(100, seed=5)), b, c, a]
    facts = pl.DataFrame({"prompt_hash": pl.Series([normalised_hash(p) for p in prompts], dtype=pl.UInt64)})
    signatures = minhash(*shingle_hashes(prompts), num_perm=128)
    found = dedupe.clusters(facts, np.arange(5), signatures, DedupeSettings())
    assert jaccard(a, c) < 0.7
    assert found.tolist() == [0, 1, 0, 0, 0]


def test_nothing_in_nothing_out():
    outcome = remove([])
    assert (outcome.kept.tolist(), outcome.dropped) == ([], [])
    none = pl.DataFrame({"prompt_hash": []}, schema={"prompt_hash": pl.UInt64})
    assert dedupe.clusters(none, np.arange(0), np.zeros((0, 128), np.uint32), DEFAULTS).tolist() == []

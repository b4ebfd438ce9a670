"""Shingles and signatures against their definition and against datasketch."""

from __future__ import annotations

import re

import numpy as np
import pytest
from datasketch import MinHash
from hypothesis import given, settings
from hypothesis import strategies as st

from curation.shingles import EMPTY_SIGNATURE, minhash, shingle_hashes

WORD = re.compile(r"[a-z0-9_\x80-\u07ff]+|[\u0800-\U0010ffff]")


def words_of(text: str) -> list[str]:
    """The definition of a word, slowly; ASCII is lower-cased, and other letters as Python does it."""
    return WORD.findall(text.lower())


def sets_of(texts: list[str], **options: object) -> list[list[int]]:
    hashes, starts = shingle_hashes(texts, **options)  # type: ignore[arg-type]  # options are keyword arguments of many types
    return [hashes[starts[i] : starts[i + 1]].tolist() for i in range(len(texts))]


@given(st.lists(st.text(max_size=80), min_size=1, max_size=6), st.integers(1, 6))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_number_of_shingles_follows_from_the_words(texts: list[str], words: int) -> None:
    for text, found in zip(texts, sets_of(texts, words=words), strict=True):
        num_words = len(words_of(text))
        assert len(found) == (0 if num_words == 0 else max(1, num_words - words + 1))


@given(
    st.lists(
        st.sampled_from(
            ["a", "b", "longer_than_eight_bytes", "longer_than_sixteen_bytes_indeed", "\u00e9t\u00e9", "\u65e5"]
        ),
        max_size=12,
    )
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_equal_runs_of_words_have_equal_shingles_and_others_do_not(words: list[str]) -> None:
    (found,) = sets_of([" ".join(words)], words=2)
    runs = [tuple(words[place : place + 2]) for place in range(max(len(words) - 1, min(len(words), 1)))]
    assert {runs.index(run) for run in runs} == {found.index(hash_) for hash_ in found}


def test_case_spacing_and_punctuation_do_not_matter() -> None:
    one, two = sets_of(["Write a Function, that adds two numbers!", "write a\nfunction that  adds two numbers"])
    assert one == two


def test_texts_do_not_depend_on_their_neighbours() -> None:
    texts = [
        "one two three four five six",
        "",
        "seven",
        "\u4f60\u597d\u4e16\u754c\u518d\u89c1 six",
        "eight nine ten eleven twelve " * 40_000,
    ]
    assert sets_of(texts) == [found for text in texts for found in sets_of([text])]


def test_wide_characters_are_words_of_their_own() -> None:
    (together,) = sets_of(["\u4f60\u597dab\u4e16"], words=1)
    apart = [found for part in ("\u4f60", "\u597d", "ab", "\u4e16") for found in sets_of([part], words=1)[0]]
    assert together == apart


def test_digits_can_be_masked() -> None:
    texts = ["A train leaves at 7 and covers 120 km", "A train leaves at 9 and covers 345 km"]
    kept, masked = sets_of(texts), sets_of(texts, mask_digits=True)
    assert kept[0] != kept[1]
    assert masked[0] == masked[1]


@pytest.mark.parity
@pytest.mark.parametrize(("num_perm", "seed"), [(128, 1), (125, 1), (16, 7)])
def test_signatures_are_those_of_datasketch(num_perm: int, seed: int) -> None:
    texts = [" ".join(f"w{(i * j) % 97}" for j in range(i * 7 + 1)) for i in range(1, 60)]
    hashes, starts = shingle_hashes(texts)
    ours = minhash(hashes, starts, num_perm=num_perm, seed=seed)
    for text in range(len(texts)):
        oracle = MinHash(num_perm=num_perm, seed=seed, hashfunc=int, scheme="affine32")
        oracle.update_batch(hashes[starts[text] : starts[text + 1]].tolist())
        assert np.array_equal(ours[text], oracle.hashvalues)


@pytest.mark.parity
def test_a_text_without_words_has_the_empty_signature_of_datasketch() -> None:
    hashes, starts = shingle_hashes(["", "...", "a b"])
    signatures = minhash(hashes, starts, num_perm=8)
    assert (signatures[:2] == EMPTY_SIGNATURE).all()
    assert np.array_equal(signatures[0], MinHash(num_perm=8, scheme="affine32").hashvalues)
    assert not (signatures[2] == EMPTY_SIGNATURE).any()


@pytest.mark.parity
def test_agreement_of_signatures_estimates_similarity() -> None:
    base = [f"word{i}" for i in range(400)]
    other = base[:300] + [f"other{i}" for i in range(100)]
    hashes, starts = shingle_hashes([" ".join(base), " ".join(other)])
    one, two = set(hashes[: starts[1]].tolist()), set(hashes[starts[1] :].tolist())
    signatures = minhash(hashes, starts, num_perm=1024)
    assert abs((signatures[0] == signatures[1]).mean() - len(one & two) / len(one | two)) < 0.05

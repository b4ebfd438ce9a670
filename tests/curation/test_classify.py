"""Domains by content: rules that are sure, a model that may abstain, labels that a person gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from curation.classify import MARKS, TABLE_BITS, Model, classify, load, num_rows, save, shipped_model, word_features
from curation.domain_rules import asks_for_code, by_rule, is_plain_code
from curation.facts import DOMAINS, OTHER, ReadingSettings
from curation.rows import prompt_text
from curation.shingles import word_hashes_of


def asked(prompt: str, completion: str = "", **changes: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": prompt}],
        "completion": completion,
        "tool_calls": None,
        "source": "s",
        **changes,
    }


def domain_of(row: dict[str, Any], **settings: Any) -> tuple[str, str, float]:
    (guess,) = classify([row], [prompt_text(row)], ReadingSettings(**settings))
    return guess


@pytest.mark.parametrize(
    ("row", "domain"),
    [
        (asked("Go.", "Sure:\n```python\nprint(1)\n```"), "code"),
        (asked("Go.", "SELECT name FROM customers WHERE city = 'London';"), "code"),
        (asked("Go.", "def add(a, b):\n    return a + b"), "code"),
        (asked("Go.", '<form action="x">\n  <input type="text"><br>\n</form>'), "code"),
        (asked("Write a function in Python that reverses a string.", "Use slicing."), "code"),
        (asked("What is the weather in Oslo?", '<tool_call>{"name": "weather"}</tool_call>'), "tool_use"),
        (asked("What is the weather?", tools=[{"type": "function"}]), "tool_use"),
        (asked("What is the weather?", tool_calls=[{"id": "1"}]), "tool_use"),
    ],
)
def test_markup_decides_alone(row: dict[str, Any], domain: str) -> None:
    assert by_rule(row, prompt_text(row)) == (domain, "rule", 1.0)


@pytest.mark.parametrize(
    "row",
    [
        asked("How many apples are there?", "Ann has 3 + 4 = 7 apples.\nBen = 7 * 2 = <<7*2=14>>14\n#### 14"),
        asked("Write a short play about a thief.", "LEAR: (aside) Return, my friend!\nFOOL: I return; I go."),
        asked("Solve it.", "We have $x = 3$; then \\frac{x}{2} = 1.5.\n\\boxed{1.5}"),
        asked(
            "Tell me about Java and its coffee.", "Java is an island. Its coffee is famous, and so are its volcanoes."
        ),
        asked("Describe a table and a chair.", "```text\na table\n```"),
    ],
)
def test_look_alikes_are_left_to_the_model(row: dict[str, Any]) -> None:
    assert by_rule(row, prompt_text(row)) is None


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ("What is CORS, and why is my request refused?", True),
        ("Write a regular expression that matches a time.", True),
        ("With numpy, create a 3 by 3 identity matrix.", True),
        ("Kubernetes was mentioned. What should I cook tonight?", False),
        ("What are the pros and cons of marathons? Wrap the output in JSON.", False),
        ("Which key has C# major? Explain.", False),
    ],
)
def test_names_of_computing_and_a_wish_in_one_sentence_are_code(question: str, code: bool) -> None:
    assert asks_for_code(question) is code


def test_a_signature_with_a_docstring_is_code_whatever_the_docstring_says() -> None:
    prompt = 'def car_race(n: int) -> int:\n    """\n    Imagine a road that is infinitely long.\n    n cars drive.\n    """\n'
    assert by_rule(asked(prompt), prompt) == ("code", "rule", 1.0)
    assert by_rule(asked("The def in lower case (see below):"), "The def in lower case (see below):") is None


def test_code_is_told_from_prose_by_its_lines() -> None:
    assert is_plain_code("import os\n\n# list them\nfor name in os.listdir('.'):\n    print(name)")
    assert not is_plain_code("First, import the goods.\nThen print the list.\nReturn home.")
    assert not asks_for_code("Write a poem about a python. The program of the concert follows.")


@pytest.mark.parametrize(
    ("prompt", "answer", "domain"),
    [
        (
            "A farmer has 120 hens. Each lays 5 eggs a week and he sells them at $2 a dozen. How much does he earn in a week?",
            "",
            "math",
        ),
        ("Find the integral of x^2 from 0 to 3.", "The integral is $\\frac{x^3}{3}$, so the value is 9.", "math"),
        ("Explain how photosynthesis turns light into chemical energy in a plant cell.", "", "science"),
        ("Write a short story about a lighthouse keeper who finds a letter.", "", "writing"),
        ("What are some tips for sleeping better? I am tired all the time.", "", "chat"),
    ],
)
def test_the_model_knows_plain_questions(prompt: str, answer: str, domain: str) -> None:
    assert domain_of(asked(prompt, answer))[:2] == (domain, "model")


def test_the_model_abstains_where_it_is_not_sure() -> None:
    assert domain_of(asked("go", ""), abstain_below=0.99)[:2] == (OTHER, "none")


def test_a_guess_does_not_depend_on_the_other_rows() -> None:
    rows = [asked(f"Tell me about {topic}.", f"{topic} is old.") for topic in ("volcanoes", "haiku", "integrals", "")]
    prompts = [prompt_text(row) for row in rows]
    together = classify(rows, prompts, ReadingSettings())
    apart = [domain_of(row) for row in rows]
    assert [guess[:2] for guess in together] == [guess[:2] for guess in apart]
    assert np.allclose([guess[2] for guess in together], [guess[2] for guess in apart], atol=1e-6)


VOCABULARY = np.sort(word_hashes_of(["two", "three"], mask_digits=True)[0])


def test_the_pair_across_two_texts_is_left_out() -> None:
    indices, starts = word_features(["one two", "three"], ["four", ""], VOCABULARY)
    alone, _ = word_features(["one two"], [""], VOCABULARY)
    assert starts.tolist() == [0, 4, 6, 8, 8]
    assert indices[:4].tolist() == alone.tolist()
    assert indices[3] == num_rows(VOCABULARY) - 1


def test_words_of_the_vocabulary_have_weights_of_their_own_on_each_side() -> None:
    of_prompt, _ = word_features(["one two"], [""], VOCABULARY)
    of_answer, _ = word_features([""], ["one two"], VOCABULARY)
    first_known = 2 << TABLE_BITS
    assert of_prompt[0] < 1 << TABLE_BITS <= of_answer[0] < first_known
    assert {of_prompt[2] - first_known, of_answer[2] - first_known - len(VOCABULARY)} < {0, 1}
    unknown, _ = word_features(["one two"], [""], VOCABULARY[:0])
    assert unknown[2] < first_known


def test_a_saved_model_is_the_same_to_eight_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(num_rows(VOCABULARY), len(DOMAINS))).astype(np.float32)
    words[-1] = 0
    model = Model(
        DOMAINS,
        VOCABULARY,
        words,
        rng.normal(size=(len(MARKS), len(DOMAINS))).astype(np.float32),
        np.zeros(len(DOMAINS), np.float32),
    )
    save(tmp_path / "model.npz", model)
    found = load(tmp_path / "model.npz")
    assert found.domains == DOMAINS
    assert np.abs(found.words - words).max() <= np.abs(words).max() / 127
    assert np.array_equal(found.marks, model.marks)
    assert np.array_equal(found.vocabulary, VOCABULARY)


def test_rare_words_weigh_as_words_that_mean_alike_do() -> None:
    model = shipped_model()
    science, writing = (model.domains.index(domain) for domain in ("science", "writing"))
    words = ["leukocyte", "antigen", "neurotransmitter", "isotope", "ballad", "novella", "prose", "sonnets"]
    chances = model.probabilities([f"Tell me about the {word}." for word in words], [""] * len(words))
    assert chances[:4, science].mean() > 1.2 * chances[4:, science].mean()
    assert chances[4:, writing].mean() > 1.2 * chances[:4, writing].mean()


def test_labels_of_a_source_move_its_rows_and_no_others(tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_bytes(
        b"".join(orjson.dumps({"id": str(n), "source": "tickets", "domain": "safety"}) + b"\n" for n in range(20))
    )
    row = asked("The third matter of the day, please.", "Noted and filed.")
    assert domain_of({**row, "source": "tickets"}, labels=labels)[0] == "safety"
    assert domain_of({**row, "source": "others"}, labels=labels) == domain_of(row)

"""Domains by content: rules that are sure, a model that may abstain, labels that a person gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from curation.classify import MARKS, Model, classify, load, save, shipped_model, word_features
from curation.domain_rules import asks_for_code, by_rule, is_plain_code
from curation.facts import DOMAINS, OTHER, ReadingSettings
from curation.rows import prompt_text


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


def test_the_pair_across_two_texts_is_left_out() -> None:
    indices, starts = word_features(["one two", "three"], ["four", ""])
    alone, _ = word_features(["one two"], [""])
    assert starts.tolist() == [0, 4, 6, 8, 8]
    assert indices[:4].tolist() == alone.tolist()


def test_a_saved_model_is_the_same_to_eight_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = rng.normal(size=shipped_model().words.shape).astype(np.float32)
    words[-1] = 0
    model = Model(
        DOMAINS,
        words,
        rng.normal(size=(len(MARKS), len(DOMAINS))).astype(np.float32),
        np.zeros(len(DOMAINS), np.float32),
    )
    save(tmp_path / "model.npz", model)
    found = load(tmp_path / "model.npz")
    assert found.domains == DOMAINS
    assert np.abs(found.words - words).max() <= np.abs(words).max() / 127
    assert np.array_equal(found.marks, model.marks)


def test_labels_of_a_source_move_its_rows_and_no_others(tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_bytes(
        b"".join(orjson.dumps({"id": str(n), "source": "tickets", "domain": "safety"}) + b"\n" for n in range(20))
    )
    row = asked("The third matter of the day, please.", "Noted and filed.")
    assert domain_of({**row, "source": "tickets"}, labels=labels)[0] == "safety"
    assert domain_of({**row, "source": "others"}, labels=labels) == domain_of(row)

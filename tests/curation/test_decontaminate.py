"""Decontamination finds evaluation items wherever they are, and only those."""

import gzip
import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from curation import decontaminate
from curation.alignment import align_window
from curation.decontaminate import DecontaminateSettings
from curation.evaluation_sets import EvaluationItem, items_of, load_items
from curation.funnel import Drop, Funnel

JANET = (
    "Janet's ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends "
    "every day with four. She sells the remainder at the farmers' market daily for $2 per fresh duck egg."
)
ROBE = "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?"
SORT = (
    "def sort_numbers(numbers: str) -> str:\n    '''Input is a space-delimited string of numerals from zero to nine.'''"
)
SHORT = "Who sings the song let it go?"
ITEMS = [EvaluationItem("set", str(n), text) for n, text in enumerate([JANET, ROBE, SORT, SHORT])]
DEFAULTS = DecontaminateSettings()


def remove(
    texts: list[str], items: list[EvaluationItem] = ITEMS, chosen: DecontaminateSettings = DEFAULTS
) -> list[Drop]:
    positions = np.arange(len(texts))
    outcome = decontaminate.remove(None, positions, lambda rows: (texts[row] for row in rows.tolist()), items, chosen)
    Funnel(len(texts)).add("decontaminate", positions, outcome)
    return outcome.dropped


def test_an_item_is_found_verbatim_and_named_with_its_span():
    (drop,) = remove(["Tell me a joke.", f"Solve this.\n{ROBE}\nThink first."])
    assert drop == Drop(1, "contaminated_set", "set:1", 1.0, ROBE.rstrip("?"))


@pytest.mark.parametrize(
    "text",
    [
        JANET.replace(" ", "\n"),
        "\n".join(f"    > {line}" for line in JANET.split(". ")),
        JANET.upper(),
        f"{'Once upon a time there was a drafter. ' * 500}{JANET}{' The end of it all.' * 500}",
        SORT.replace("    ", "\t\t"),
    ],
)
def test_wrapping_indenting_quoting_case_and_company_do_not_hide_an_item(text):
    assert [drop.score for drop in remove([text])] == [1.0]


def test_an_edited_item_is_found():
    edited = JANET.replace("ducks", "hens").replace("muffins", "cakes").replace("daily", "today")
    (drop,) = remove([edited])
    assert drop.collided_with == "set:0" and 0.3 <= drop.score < 1


def test_sharing_a_phrase_is_no_contamination():
    shared = "Tom bakes muffins for her friends every day with four of his sisters, and sells each for a dollar."
    assert remove([shared, "Janet eats three for breakfast every morning and she never bakes anything at all."]) == []


def test_a_short_item_counts_in_full_on_a_line_of_its_own():
    assert [drop.row for drop in remove(["Hi.\n- who sings the song: 'Let It Go'\nThanks", SHORT])] == [0, 1]
    assert remove(["I wonder who sings the song let it go in the film.", "Who sings the song"]) == []


def test_what_items_have_in_common_is_boilerplate():
    template = "Write a function in the Python language that takes a list and returns its {}"
    items = [
        EvaluationItem("set", word, template.format(word)) for word in ("maximum value", "least value", "mean of all")
    ]
    assert remove([template.format("reverse, please, as soon as you can")], items) == []
    assert [drop.collided_with for drop in remove([template.format("mean of all")], items)] == ["set:mean of all"]


def test_nothing_to_look_for_drops_nothing():
    assert remove([JANET], items=[]) == []
    assert remove([]) == []


@pytest.mark.parametrize(
    "row, texts",
    [
        ({"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": "pass", "test": "..."}, ["def f():"]),
        ({"text": "Write a function.", "code": "R = 3", "task_id": 1, "test_list": []}, ["Write a function."]),
        ({"question": "How many?", "answer": "18"}, ["How many?"]),
        ({"problem": "Find x.", "solution": "1", "unique_id": "a"}, ["Find x."]),
        ({"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."]}, ["Write.", "Rewrite."]),
        (
            {"id": "s", "question": [[{"role": "system", "content": "Be."}, {"role": "user", "content": "Go."}]]},
            ["Go."],
        ),
        ({"Question": "Which?", "Answer": "A"}, ["Which?"]),
        ({"instruction": "Add.", "input": "1 2", "output": "3"}, ["Add.\n1 2"]),
        (["Was?", "18"], ["Was?"]),
    ],
)
def test_layouts_are_known_by_their_fields(row, texts):
    assert [item.text for item in items_of("set", [row])] == texts


def test_files_are_read_by_what_they_hold(tmp_path):
    rows = [{"question": "How many?"}, {"question": "How few?"}]
    lines = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "d.tsv").write_text("How many?\t1\nHow few?\t2\n")
    (tmp_path / "e.csv").write_text('id,question\nx,"How many?"\ny,How few?\n')
    for name in ("a.jsonl", "b.json", "c.jsonl.gz", "d.tsv", "e.csv"):
        assert [item.text for item in load_items([tmp_path / name])] == ["How many?", "How few?"]
    assert [item.id for item in load_items([tmp_path / "e.csv"])] == ["x", "y"]


def test_a_file_with_a_generic_name_is_called_after_its_folder(tmp_path):
    folder = tmp_path / "spec_bench"
    folder.mkdir()
    (folder / "question.jsonl").write_text('{"turns": ["a"], "question_id": 1}')
    assert load_items([folder / "question.jsonl"]) == [EvaluationItem("spec_bench", "1", "a")]


@pytest.mark.hostile
@pytest.mark.parametrize(
    "content, problem",
    [
        (b"not json", "not an evaluation set"),
        (b'{"answer": 1}', "row 0 has no question"),
        (b"\xff", "not an evaluation set"),
        (b"3", "row 0 has no question"),
    ],
)
def test_a_file_that_is_no_evaluation_set_says_so(tmp_path, content, problem):
    path = tmp_path / "set.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=problem):
        load_items([path])


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="no evaluation set 'gsm9k': give a file, or one of gsm8k, math_500"):
        load_items(["gsm9k"])


def planted(num_items: int, edited_frac: float) -> tuple[list[EvaluationItem], list[str]]:
    """Items of 15 to 60 words from a Zipf-like vocabulary, and chats that hold them with some words edited."""
    rng = random.Random(5)
    vocabulary = [f"word{n}" for n in range(2000)]
    weights = [1 / (rank + 5) for rank in range(2000)]
    items, chats = [], []
    for number in range(num_items):
        words = rng.choices(vocabulary, weights, k=rng.randint(15, 60))
        items.append(EvaluationItem("set", str(number), " ".join(words)))
        edited = [rng.choice(vocabulary) if rng.random() < edited_frac else word for word in words]
        before, after = (" ".join(rng.choices(vocabulary, weights, k=300)) for _ in range(2))
        chats.append(f"{before}\n{' '.join(edited)}\n{after}")
    return items, chats


@pytest.mark.parametrize("edited_frac, least", [(0.0, 1.0), (0.05, 0.99), (0.1, 0.85)])
def test_planted_items_are_found(edited_frac, least):
    items, chats = planted(200, edited_frac)
    found = {drop.row for drop in remove(chats, items) if drop.collided_with == f"set:{drop.row}"}
    assert len(found) >= least * len(items)


def test_chats_without_items_are_left_alone():
    items, _ = planted(200, 0.0)
    rng = random.Random(6)
    vocabulary, weights = [f"word{n}" for n in range(2000)], [1 / (rank + 5) for rank in range(2000)]
    chats = [" ".join(rng.choices(vocabulary, weights, k=600)) for _ in range(200)]
    assert remove(chats, items) == []


def test_a_shared_run_of_ten_words_is_no_contamination():
    shared = "how many more does she have left than at first"
    item = (
        f"Natalia sold clips to 48 friends in April and half as many in May, so {shared} when June comes around again?"
    )
    row = f"Weng had twelve apples, gave five of them to a neighbour and bought two bags of seven: {shared}, if none is eaten?"
    assert remove([row], [EvaluationItem("gsm8k", "0", item)]) == []


def test_word_problems_of_one_mould_differ_by_their_rare_words():
    questions = [f"Write a function to find the {what} of the given number" for what in ("parity", "factorial", "root")]
    items = [EvaluationItem("mbpp", str(at), f"{question}, please.") for at, question in enumerate(questions)]
    assert remove(["Write a function to find the logarithm of the given number, please."], items) == []


def test_the_nearest_item_is_named():
    twin = EvaluationItem("twin", "0", ROBE.replace("blue fiber", "red cotton"))
    assert [drop.collided_with for drop in remove([ROBE], [twin, *ITEMS])] == ["set:1"]


@given(
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=8),
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12),
)
@settings(deadline=None, max_examples=60)
def test_alignment_is_the_longest_common_subsequence(item, window):
    best = max(
        size
        for size in range(len(item) + 1)
        for part in itertools.combinations(item, size)
        if is_subsequence(part, window)
    )
    found = align_window(item, np.ones(len(item)), window, 1 / len(item))
    assert (round(found.fraction * len(item)) if found else 0) == best
    if found:
        assert is_subsequence((window[found.first], window[found.last])[:best], item)


def is_subsequence(part, whole) -> bool:
    rest = iter(whole)
    return all(word in rest for word in part)


def test_ngrams_longer_than_a_long_item_are_refused():
    with pytest.raises(ValidationError, match="`ngram_words` .13. is more than `short_words` .12."):
        DecontaminateSettings(ngram_words=13)

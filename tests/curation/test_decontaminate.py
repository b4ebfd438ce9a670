"""Decontamination finds evaluation items wherever they are, and only those."""

import gzip
import json

import numpy as np
import pytest

from curation import decontaminate
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
    texts: list[str], items: list[EvaluationItem] = ITEMS, settings: DecontaminateSettings = DEFAULTS
) -> list[Drop]:
    positions = np.arange(len(texts))
    outcome = decontaminate.remove(None, positions, lambda rows: (texts[row] for row in rows.tolist()), items, settings)
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

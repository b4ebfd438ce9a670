"""Filters drop a row for the first reason that holds, from its facts alone."""

import numpy as np
import polars as pl

from curation import filters
from curation.facts import Flag
from curation.filters import FilterSettings
from curation.funnel import Funnel

DEFAULTS = FilterSettings()
GOOD = {
    "id": "a",
    "source": "books",
    "license": None,
    "language": "en",
    "prompt_chars": 40,
    "prompt_tokens": 10,
    "completion_tokens": 50,
    "finish_reason": "stop",
    "flags": 0,
}


def facts(*changes: dict) -> pl.DataFrame:
    return pl.DataFrame(
        [GOOD | change for change in changes], schema_overrides={"license": pl.String, "flags": pl.UInt32}
    )


def reasons(table: pl.DataFrame, settings: FilterSettings = DEFAULTS, **kwargs) -> dict[int, str]:
    positions = np.arange(len(table))
    outcome = filters.apply(table, positions, settings, **kwargs)
    Funnel(len(table)).add("filters", positions, outcome)
    return {drop.row: drop.reason for drop in outcome.dropped}


def test_a_good_row_is_kept():
    assert reasons(facts({})) == {}


def test_each_flag_has_its_reason():
    table = facts(
        {"flags": Flag.EMPTY_PROMPT},
        {"flags": Flag.EMPTY},
        {"flags": Flag.CONTROL_TOKENS},
        {"flags": Flag.UNCLOSED_THINKING},
        {"flags": Flag.LOOP},
        {"flags": Flag.MOJIBAKE},
    )
    expected = ["empty_prompt", "empty_completion", "control_tokens", "unclosed_thinking", "loop", "mojibake"]
    assert reasons(table) == dict(enumerate(expected))


def test_flags_can_be_let_through():
    table = facts({"flags": Flag.LOOP | Flag.MOJIBAKE | Flag.CONTROL_TOKENS | Flag.UNCLOSED_THINKING})
    lenient = FilterSettings(loops=False, mojibake=False, control_tokens=False, unclosed_thinking=False)
    assert reasons(table, lenient) == {}


def test_refusals_and_repaired_lines_go_only_on_request():
    table = facts({"flags": Flag.REFUSAL}, {"flags": Flag.REPAIRED})
    assert reasons(table) == {}
    assert reasons(table, FilterSettings(refusals=True, repaired=True)) == {0: "refusal", 1: "repaired_line"}


def test_truncated_completions_stay_unless_the_recipe_says_otherwise():
    table = facts(
        {"finish_reason": "length", "flags": Flag.TRUNCATED}, {"finish_reason": None}, {"finish_reason": "abort"}
    )
    assert reasons(table) == {2: "finish_reason_abort"}
    assert reasons(table, FilterSettings(drop_finish_reasons=("length",))) == {0: "finish_reason_length"}


def test_lengths_are_limits_inclusive():
    table = facts(
        {"prompt_tokens": 100},
        {"prompt_tokens": 101},
        {"completion_tokens": 1},
        {"completion_tokens": 201},
        {"prompt_tokens": 100, "completion_tokens": 200},
        {"prompt_chars": 3},
    )
    settings = FilterSettings(
        min_prompt_chars=4, max_prompt_tokens=100, max_completion_tokens=200, max_total_tokens=299
    )
    assert reasons(table, settings) == {
        1: "prompt_too_long",
        2: "completion_too_short",
        3: "completion_too_long",
        4: "row_too_long",
        5: "prompt_too_short",
    }


def test_a_licence_is_the_rows_or_its_sources_or_unknown():
    table = facts({"license": "MIT"}, {"license": "CC-BY-NC-4.0"}, {"source": "books"}, {"source": "web"})
    settings = FilterSettings(licenses=("MIT",))
    assert reasons(table) == {}
    assert reasons(table, settings, licenses_by_source={"books": "MIT"}) == {
        1: "license_not_allowed",
        3: "license_unknown",
    }


def test_undetermined_languages_pass_a_language_list():
    table = facts({"language": "en"}, {"language": "de"}, {"language": "und"})
    assert reasons(table, FilterSettings(languages=("en",))) == {1: "language_not_wanted"}


def test_the_first_reason_wins():
    everything = Flag.EMPTY | Flag.LOOP | Flag.REFUSAL
    assert reasons(facts({"flags": everything, "finish_reason": "error"})) == {0: "empty_completion"}


def test_only_the_rows_asked_about_are_judged():
    table = facts({"flags": Flag.EMPTY}, {}, {"flags": Flag.EMPTY})
    outcome = filters.apply(table, np.array([1, 2]), FilterSettings())
    assert outcome.kept.tolist() == [1]
    assert [drop.row for drop in outcome.dropped] == [2]


def test_an_answer_in_another_language_goes_on_request():
    english = "Could you please tell me how the weather is going to be tomorrow in the mountains?"
    german = "Morgen wird es in den Bergen sonnig und warm, am Abend sind einzelne Gewitter zu erwarten."
    prompts, completions = [english, german, english, english], [german, german, "42", german]
    table = facts({}, {}, {}, {"flags": Flag.LOOP})
    texts = {
        "prompts": lambda rows: (prompts[row] for row in rows.tolist()),
        "completions": lambda rows: (completions[row] for row in rows.tolist()),
    }
    assert reasons(table, FilterSettings(language_mismatch=True), **texts) == {0: "language_mismatch", 3: "loop"}
    assert reasons(table, **texts) == {3: "loop"}


def test_no_rows_pass():
    outcome = filters.apply(facts({}), np.arange(0), DEFAULTS)
    assert (outcome.kept.tolist(), outcome.dropped) == ([], [])

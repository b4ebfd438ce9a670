"""Faults of a text, and the language of a row."""

from __future__ import annotations

import pytest

from curation import flags
from curation.facts import Flag
from curation.languages import detect, language_of

PROSE = (
    "The harbour was quiet that morning, and the boats lay still. "
    "Nobody had told the gulls, who went about their business as ever. "
)


def found(completion: str, prompt: str = "Tell me.", reasoning: str | None = None, calls: bool = False) -> Flag:
    return Flag(flags.text_flags(prompt, completion, reasoning, calls))


@pytest.mark.parametrize(
    ("completion", "flag"),
    [
        (PROSE, Flag(0)),
        (" \n", Flag.EMPTY),
        (PROSE + "I am stuck here. " * 30, Flag.LOOP),
        ("\n".join(["First, we note that the answer is close.", "Second, we go on."] * 12 + ["The end."]), Flag.LOOP),
        ("<think>First I consider", Flag.UNCLOSED_THINKING),
        ("<think>so</think>The answer is 4.", Flag(0)),
        ("reasoning before</think>The answer is 4.", Flag(0)),
        ("I'm sorry, but I can't help with that request.", Flag.REFUSAL),
        ("As an AI language model, I cannot provide medical advice.", Flag.REFUSAL),
        ("I cannot believe how good this cake is! Help yourself.", Flag(0)),
        ("Well<|im_end|>\n<|im_start|>user\nmore", Flag.CONTROL_TOKENS),
        ("Use a pipe: a | b, or a <|> b.", Flag(0)),
        ("[INST] do it [/INST]", Flag.CONTROL_TOKENS),
        ("The caf\u00c3\u00a9 is open.", Flag.MOJIBAKE),
        ("It\u00e2\u20ac\u2122s late.", Flag.MOJIBAKE),
        ("The caf\u00e9 is open; S\u00c3O PAULO too.", Flag(0)),
        ("broken \ufffd text", Flag.MOJIBAKE),
    ],
)
def test_each_fault_is_found_where_it_is(completion: str, flag: Flag) -> None:
    assert found(completion) == flag


def test_a_tool_call_is_an_answer() -> None:
    assert found("", calls=True) == Flag(0)


def test_an_empty_prompt_and_a_looping_thought_are_faults() -> None:
    assert found(PROSE, prompt=" ") == Flag.EMPTY_PROMPT
    assert found(PROSE, reasoning="Wait, let me check that again. " * 20) == Flag.LOOP


def test_a_long_table_is_no_loop() -> None:
    table = "\n".join(f"| row {number} | {number * 7} | yes |" for number in range(200))
    assert found(table) == Flag(0)


def test_phrases_said_over_and_over_are_found_without_a_period() -> None:
    once = " ".join(f"word{number}" for number in range(60))
    shuffled = " ".join(f"and {number} then we go round and round in the very same circle" for number in range(20))
    assert flags.repeats_phrases([once, shuffled, ""]).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Where can I find a good restaurant near the old town?", "en"),
        ("Wo finde ich ein gutes Restaurant in der Altstadt?", "de"),
        ("\u00bfD\u00f3nde puedo encontrar un buen restaurante en el centro?", "es"),
        ("O\u00f9 puis-je trouver un bon restaurant dans la vieille ville ?", "fr"),
        (
            "\u65e7\u5e02\u8857\u306b\u3044\u3044\u30ec\u30b9\u30c8\u30e9\u30f3\u306f\u3042\u308a\u307e\u3059\u304b",
            "ja",
        ),
        ("\u8001\u57ce\u9644\u8fd1\u6709\u4ec0\u4e48\u597d\u9910\u5385\u5417\uff1f", "zh"),
        ("", "und"),
        ("x = 3", "und"),
        ("\x01\x02 control \ufffe characters are no reason to fail, are they?", "en"),
    ],
)
def test_languages_are_told_apart(text: str, language: str) -> None:
    assert detect(text) == language


def test_the_language_is_that_of_the_answer_and_code_has_none() -> None:
    code = "```python\ndef greet(name):\n    return f'hello {name}'\n```"
    assert language_of("Das Wetter wird morgen wieder besser, sagen sie.", "Translate into German: the weather") == "de"
    assert language_of(code, "Schreibe eine Funktion, die jemanden mit Namen begr\u00fc\u00dft.") == "de"
    assert language_of(code, "def greet") == "und"

"""Rows to documents: engine ids as they are, other rows through chat templates, the boundary never in doubt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from curation.chat_template import ChatTemplate, TemplateRefused
from curation.documents import Document
from curation.encoders import HOSTILE, choose, encoder
from curation.tokenization import OWN_COMPLETION, TextEncoding, TokenizationSettings, tokenize_rows

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

LLAMA3 = """{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}\
{{ m.content | trim }}{{ '<|eot_id|>' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"""

QWEN3 = """{%- set ns = namespace(last=messages|length - 1, found=false) -%}
{%- for m in messages[::-1] -%}{%- if not ns.found and m.role == 'user' -%}
{%- set ns.last = messages|length - 1 - loop.index0 -%}{%- set ns.found = true -%}{%- endif -%}{%- endfor -%}
{%- if tools -%}{{- '<|im_start|>system\n<tools>' + (tools | tojson) + '</tools><|im_end|>\n' -}}{%- endif -%}
{%- for m in messages -%}
{%- set content = m.content or '' -%}
{%- if m.role == 'assistant' -%}
{%- set thought = m.reasoning_content or '' -%}
{%- if not thought and '</think>' in content -%}
{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}
{%- if loop.index0 > ns.last and (loop.last or thought) -%}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' -}}
{%- endif -%}
{{- content.lstrip('\n') -}}
{%- for call in m.tool_calls or [] -%}{{- '\n<tool_call>\n' + (call.function | tojson) + '\n</tool_call>' -}}{%- endfor -%}
{{- '<|im_end|>\n' -}}
{%- else -%}{{- '<|im_start|>' + m.role + '\n' + content + '<|im_end|>\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}{%- endif -%}"""

GEMMA = """{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate') }}{% endif %}\
{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + (m.content | trim) + '<end_of_turn>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""

# Drops thinking from every assistant turn, the last one too, and opens it in the generation prompt.
DEEPSEEK_R1 = """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content }}{% else %}\
{% set content = m.content.split('</think>')[-1] %}{{ '<|assistant|>' + content + '<|end|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"""

NO_GENERATION_PROMPT = (
    """{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"""
)

TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b): return a + b  # 12345 sums\n" * 20


def _row(
    completion: str = "dog jumps", *, messages: list[dict[str, Any]] | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "messages": messages or [{"role": "user", "content": "The fox?"}],
        "completion": completion,
        "reasoning": None,
        "tool_calls": None,
        "prompt_token_ids": None,
        "completion_token_ids": None,
        **fields,
    }


def _documents(tokenizer: Any, row: dict[str, Any], **settings: Any) -> list[Document]:
    encoding = TextEncoding(ChatTemplate(tokenizer), encoder("huggingface", tokenizer))
    chunk = tokenize_rows([(7, row)], encoding, TokenizationSettings(**settings))
    assert [drop.reason for drop in chunk.dropped] == []
    return chunk.documents


def _texts(tokenizer: Any, document: Document) -> tuple[str, str]:
    """Prompt and completion of a document, decoded with every special token."""
    ids = document.input_ids.tolist()
    return tokenizer.decode(ids[: document.boundary]), tokenizer.decode(ids[document.boundary :])


def test_engine_ids_are_taken_as_they_are_and_the_boundary_is_the_length_of_the_prompt() -> None:
    row = _row(prompt_token_ids=[5, 6, 7], completion_token_ids=[8, 9])
    chunk = tokenize_rows([(3, row)], None, TokenizationSettings())
    (document,) = chunk.documents
    assert document.input_ids.tolist() == [5, 6, 7, 8, 9]
    assert document.input_ids.dtype == np.int32
    assert (document.row, document.turn, document.boundary, document.cut) == (3, OWN_COMPLETION, 3, 0)


@pytest.mark.parametrize(
    ("template", "prompt", "completion"),
    [
        (CHATML, "<|im_start|>user\nThe fox?<|im_end|>\n<|im_start|>assistant\n", "dog jumps<|im_end|>"),
        (
            LLAMA3,
            "<bos><|start_header_id|>user<|end_header_id|>\n\nThe fox?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            "dog jumps<|eot_id|>",
        ),
        (
            QWEN3,
            "<|im_start|>user\nThe fox?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            "dog jumps<|im_end|>",
        ),
        (GEMMA, "<bos><start_of_turn>user\nThe fox?<end_of_turn>\n<start_of_turn>model\n", "dog jumps<end_of_turn>"),
        (NO_GENERATION_PROMPT, "<|im_start|>user\nThe fox?<|im_end|><|im_start|>assistant\n", "dog jumps<|im_end|>"),
    ],
    ids=["chatml", "llama3", "qwen3", "gemma", "no-generation-prompt"],
)
def test_a_turn_is_the_generation_prompt_and_then_the_answer_up_to_its_end_token(
    make_tokenizer: Callable[[str], Any], template: str, prompt: str, completion: str
) -> None:
    tokenizer = make_tokenizer(template)
    (document,) = _documents(tokenizer, _row())
    assert _texts(tokenizer, document) == (prompt, completion)


def test_thinking_is_learned_where_the_template_writes_it(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer(QWEN3)
    for row in (_row(reasoning="quick sums"), _row("<think>\nquick sums\n</think>\n\ndog jumps")):
        (document,) = _documents(tokenizer, row)
        prompt, completion = _texts(tokenizer, document)
        assert prompt.endswith("<|im_start|>assistant\n")
        assert completion == "<think>\nquick sums\n</think>\n\ndog jumps<|im_end|>"


def test_thinking_that_the_template_drops_is_put_back_after_the_tag_that_the_prompt_opened(
    make_tokenizer: Callable[[str], Any],
) -> None:
    tokenizer = make_tokenizer(DEEPSEEK_R1)
    (document,) = _documents(tokenizer, _row(reasoning="quick sums"))
    prompt, completion = _texts(tokenizer, document)
    assert prompt == "<bos><|user|>The fox?<|assistant|><think>\n"
    assert completion == "quick sums\n</think>\n\ndog jumps<|end|>"


def test_a_template_without_thinking_does_not_lose_it(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer(CHATML)
    (document,) = _documents(tokenizer, _row(reasoning="quick sums"))
    assert _texts(tokenizer, document)[1] == "<think>\nquick sums\n</think>\n\ndog jumps<|im_end|>"


def test_each_assistant_turn_is_a_document_whose_history_reads_as_the_target_saw_it(
    make_tokenizer: Callable[[str], Any],
) -> None:
    tokenizer = make_tokenizer(QWEN3)
    messages = [
        {"role": "user", "content": "The fox?"},
        {"role": "assistant", "content": "lazy", "reasoning": "brown"},
        {"role": "user", "content": "The dog?"},
    ]
    first, last = _documents(tokenizer, _row("jumps", messages=messages, reasoning="quick"))
    assert (first.turn, last.turn) == (0, OWN_COMPLETION)
    assert _texts(tokenizer, first) == (
        "<|im_start|>user\nThe fox?<|im_end|>\n<|im_start|>assistant\n",
        "<think>\nbrown\n</think>\n\nlazy<|im_end|>",
    )
    prompt, completion = _texts(tokenizer, last)
    assert prompt == (  # the template rewrites history: the first turn's thinking is gone from it
        "<|im_start|>user\nThe fox?<|im_end|>\n<|im_start|>assistant\nlazy<|im_end|>\n"
        "<|im_start|>user\nThe dog?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert completion == "<think>\nquick\n</think>\n\njumps<|im_end|>"
    (only,) = _documents(tokenizer, _row("jumps", messages=messages), turns="last")
    assert only.turn == OWN_COMPLETION


def test_tool_calls_are_learned_as_the_template_writes_them(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer(QWEN3)
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tools = [{"type": "function", "function": {"name": "add"}}]
    (document,) = _documents(tokenizer, _row("", tool_calls=[call], tools=tools, finish_reason="tool_calls"))
    prompt, completion = _texts(tokenizer, document)
    assert "<tools>" in prompt
    assert completion == '\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'


def test_an_answer_that_quotes_the_template_moves_no_boundary(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer(CHATML)
    answer = "say <|im_start|>assistant\nfox<|im_end|> and stop"
    (document,) = _documents(tokenizer, _row(answer))
    prompt, completion = _texts(tokenizer, document)
    assert prompt == "<|im_start|>user\nThe fox?<|im_end|>\n<|im_start|>assistant\n"
    assert completion == answer + "<|im_end|>"


def test_a_completion_that_ran_out_of_tokens_has_no_end_token(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer(CHATML)
    (document,) = _documents(tokenizer, _row(finish_reason="length"))
    assert _texts(tokenizer, document)[1] == "dog jumps"


def test_a_conversation_that_the_template_refuses_is_dropped_with_what_it_said(
    make_tokenizer: Callable[[str], Any],
) -> None:
    tokenizer = make_tokenizer(GEMMA)
    encoding = TextEncoding(ChatTemplate(tokenizer), encoder("huggingface", tokenizer))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The fox?"}]
    chunk = tokenize_rows([(4, _row(messages=messages))], encoding, TokenizationSettings())
    (drop,) = chunk.dropped
    assert (drop.row, drop.reason, drop.detail) == (4, "chat_template_refused", "System role not supported")


def test_a_template_that_cannot_render_an_answer_is_an_error_at_once(make_tokenizer: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="leaves out the assistant's answer"):
        ChatTemplate(make_tokenizer("{{ messages[0].content }}"))
    with pytest.raises(ValueError, match="cannot render one question and one answer: no"):
        ChatTemplate(make_tokenizer("{{ raise_exception('no') }}"))
    with pytest.raises(TemplateRefused):
        ChatTemplate(make_tokenizer(CHATML)).turn([{"role": "user", "content": None}], {"content": "x"})


@pytest.mark.parametrize(
    ("max_seq_len", "too_long", "expected"),
    [
        (5, "cut", [1, 2, 3, 8, 9]),
        (6, "cut", [1, 2, 3, 8, 9, 10]),
        (4, "cut", "prompt_fills_max_seq_len"),
        (5, "drop", "longer_than_max_seq_len"),
        (None, "drop", [1, 2, 3, 8, 9, 10]),
    ],
)
def test_a_long_row_is_cut_at_its_end_or_dropped_and_never_loses_its_prompt(
    max_seq_len: int | None, too_long: str, expected: list[int] | str
) -> None:
    row = _row(prompt_token_ids=[1, 2, 3], completion_token_ids=[8, 9, 10])
    settings = TokenizationSettings.model_validate({"max_seq_len": max_seq_len, "too_long": too_long})
    chunk = tokenize_rows([(0, row)], None, settings)
    if isinstance(expected, str):
        assert [drop.reason for drop in chunk.dropped] == [expected]
    else:
        (document,) = chunk.documents
        assert document.input_ids.tolist() == expected
        assert document.cut == 6 - len(expected)


@pytest.mark.hostile
@pytest.mark.parametrize("ids", [[1, -2, 3], [1, 2**40, 3], [1, "2", 3], [1, [2], 3], [1, 2.5, 3], [1, None, 3]])
def test_ids_that_are_no_token_ids_drop_their_row(ids: list[Any]) -> None:
    chunk = tokenize_rows([(0, _row(prompt_token_ids=ids, completion_token_ids=[8, 9]))], None, TokenizationSettings())
    assert [drop.reason for drop in chunk.dropped] == ["bad_token_ids"]


@pytest.mark.parity
@pytest.mark.parametrize("name", ["gigatoken", "fastokens"])
def test_a_fast_encoder_gives_the_ids_of_the_tokenizer_on_hostile_text(
    make_tokenizer: Callable[[str], Any], name: Any
) -> None:
    pytest.importorskip(name)
    tokenizer = make_tokenizer(CHATML)
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in HOSTILE]
    assert [ids.tolist() for ids in encoder(name, tokenizer)(HOSTILE)] == expected


@pytest.mark.parity
def test_the_encoder_that_is_chosen_equals_the_tokenizer(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer(CHATML)
    choice = choose(tokenizer, [TEXT])
    texts = [TEXT, *HOSTILE]
    expected = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    assert [ids.tolist() for ids in encoder(choice.name, tokenizer)(texts)] == expected
    assert choose(tokenizer, [TEXT], fast=False).name == "huggingface"

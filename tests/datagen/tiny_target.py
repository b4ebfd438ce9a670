"""A target without weights: a byte-level tokenizer, a ChatML template that can think, and a context length."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|im_start|>system\ntools: {% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant', 'tool') %}{{ raise_exception('unknown role ' + message.role) }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments['x'] }}){% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)


def make_target(
    folder: Path,
    context_length: int | None = 512,
    template: str | None = TEMPLATE,
    thinks: bool = True,
    **tokenizer_config: Any,
) -> Path:
    """Write the folder and return it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in ("<s>", "<|im_start|>", "<|im_end|>")])
    if thinks:
        tokenizer.add_tokens([AddedToken(token, special=False) for token in ("<think>", "</think>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|im_end|>",
        **tokenizer_config,
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = {"model_type": "llama"} | ({"max_position_embeddings": context_length} if context_length else {})
    (folder / "config.json").write_text(json.dumps(model))
    return folder

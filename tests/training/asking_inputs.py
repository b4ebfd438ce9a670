"""A tiny random target, a drafter for it, and a set with held-out rows, on disk as the commands find them."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from curation.arrow_sets import HELDOUT, SCHEMA, SET_CARD
from training import checkpoint
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig, DrafterSettings, configure
from training.target import target_facts

VOCAB = 40
TARGET = LlamaConfig(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=6,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=VOCAB,
    initializer_range=0.3,
    eos_token_id=2,
    max_position_embeddings=256,
)


def write_target(folder: Path) -> Path:
    """A random Llama without a tokenizer."""
    torch.manual_seed(0)
    LlamaForCausalLM(TARGET).float().save_pretrained(folder)
    return folder


def make_drafter(seed: int = 1, **settings: object) -> DFlashDrafter:
    """A random drafter whose norms are not all ones."""
    shape = {"num_layers": 2, "block_size": 6, "num_features": 3} | settings
    drafter = DFlashDrafter(configure(DrafterSettings(**shape), target_facts(TARGET), mask_token_id=VOCAB - 1))
    generator = torch.Generator().manual_seed(seed)
    drafter.init_weights(generator)
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
    return drafter.eval()


def write_run(folder: Path, drafter: DFlashDrafter, step: int = 10) -> Path:
    """A run with one checkpoint that holds what asking needs of it."""
    config: DrafterConfig = drafter.config
    state = {"drafter": drafter.state_dict(), "ema": None, "drafter_config": orjson.dumps(config.to_json()).decode()}
    checkpoint.save(folder, step, state)
    return folder


def write_set(folder: Path, target: Path, heldout_rows: int = 6) -> Path:
    """A set whose held-out rows are random; domains `code` and `math` take turns."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    for number in range(heldout_rows):
        ids = torch.randint(3, VOCAB - 1, (12 + number,), generator=generator).tolist()
        domain = ("code", "math")[number % 2]
        row = {"input_ids": ids, "loss_mask": [0] * 6 + [1] * (len(ids) - 6), "seq_len": len(ids)}
        rows.append(row | {"id": f"row{number}", "source": f"{domain}_source", "domain": domain})
    folder.mkdir(parents=True)
    if rows:
        (folder / HELDOUT).mkdir()
        with pa.ipc.new_stream(str(folder / HELDOUT / "data-00000-of-00001.arrow"), SCHEMA) as writer:
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
    (folder / SET_CARD).write_bytes(orjson.dumps({"target": {"model": str(target), "chat_template_kwargs": {}}}))
    return folder

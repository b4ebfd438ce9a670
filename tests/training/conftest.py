"""What the tests of the drafter share: small packed batches and tiny targets of every supported kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3_5TextConfig, Qwen3Config

from curation.arrow_sets import HELDOUT, SCHEMA, SET_CARD, shard_name
from training.batches import Batch
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.job import Job
from training.recipe import Recipe
from training.target import Target

VOCAB, WIDTH = 96, 32
TINY = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
TARGETS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**TINY, tie_word_embeddings=False),
    "llama tied": lambda: LlamaConfig(**TINY, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**TINY),
    "qwen3 sliding": lambda: Qwen3Config(
        **TINY, use_sliding_window=True, sliding_window=6, layer_types=["sliding_attention", "full_attention"] * 4
    ),
    "qwen3.5": lambda: Qwen3_5TextConfig(
        **TINY,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
}


@pytest.fixture(scope="session", params=TARGETS)
def any_target(request: pytest.FixtureRequest) -> Target:
    return _tiny_target(request.param)


@pytest.fixture(scope="session")
def target() -> Target:
    return _tiny_target("qwen3")


@pytest.fixture(scope="session")
def hybrid_target() -> Target:
    return _tiny_target("qwen3.5")


@pytest.fixture(scope="session")
def pack() -> Callable[..., Batch]:
    """Pack documents, given as pairs (token ids, mask), into a batch with padding at the end."""
    return _pack


@pytest.fixture(scope="session")
def random_batch() -> Callable[..., Batch]:
    """Random documents of the given lengths; the first `prompt` tokens of each are unsupervised."""

    def make(lengths: list[int], prompt: int = 4, padding: int = 3, seed: int = 0) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        documents = [
            (torch.randint(VOCAB - 1, (n,), generator=generator).tolist(), [i >= prompt for i in range(n)])
            for n in lengths
        ]
        return _pack(documents, padding)

    return make


@pytest.fixture(scope="session")
def drafter_config() -> Callable[..., DrafterConfig]:
    """A configuration that fits the tiny targets."""
    return _config


@pytest.fixture(scope="session")
def drafter() -> Callable[..., DFlashDrafter]:
    """A random drafter in float64, so that equality can be asked for closely."""

    def make(backend: str = "auto", dtype: torch.dtype = torch.float64, **changes: object) -> DFlashDrafter:
        model = DFlashDrafter(_config(**changes), backend=backend).to(dtype)
        model.init_weights(torch.Generator().manual_seed(11))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                # Norm weights of one hide a norm that is applied to the wrong layer.
                if name.endswith("norm.weight"):
                    parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(len(name)))
                else:
                    parameter.mul_(8)
        return model

    return make


def _config(**changes: object) -> DrafterConfig:
    base = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": VOCAB,
        "num_target_layers": 8,
        "target_layer_ids": (1, 3, 5),
        "mask_token_id": VOCAB - 1,
        "block_size": 5,
        "layer_types": ("full_attention", "full_attention"),
    }
    return DrafterConfig(**(base | changes))


def _pack(documents: list[tuple[list[int], list[bool]]], padding: int = 0) -> Batch:
    lengths = [len(ids) for ids, _ in documents]
    none = [0] * padding
    return Batch(
        input_ids_T=torch.tensor([i for ids, _ in documents for i in ids] + none),
        document_T=torch.tensor([d for d, n in enumerate(lengths) for _ in range(n)] + [-1] * padding),
        position_T=torch.tensor([p for n in lengths for p in range(n)] + none),
        loss_mask_T=torch.tensor([bool(m) for _, mask in documents for m in mask] + [False] * padding),
        row_ids=[f"row{d}" for d in range(len(lengths))],
        domains=["even" if d % 2 == 0 else "odd" for d in range(len(lengths))],
        bucket=0,
    )


def _tiny_target(kind: str) -> Target:
    """A random target of 8 layers."""
    torch.manual_seed(7)
    return Target(AutoModelForCausalLM.from_config(TARGETS[kind](), dtype=torch.float32))


@pytest.fixture(scope="session")
def tiny_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete set of 60 rows in three domains and two shards, its held-out part, and the tiny target that it names."""
    folder = tmp_path_factory.mktemp("sets") / "tokenized_v1"
    target = folder / "target"
    _tiny_target("llama tied").model.save_pretrained(target)
    generator = np.random.default_rng(5)
    write_rows(folder, [_row(generator, number) for number in range(60)], num_shards=2)
    write_rows(folder / HELDOUT, [_row(generator, number) for number in range(60, 69)], num_shards=1)
    (folder / SET_CARD).write_text(json.dumps({"target": {"model": str(target), "revision": None}}))
    return folder


@pytest.fixture
def make_job(tiny_set: Path, tmp_path: Path) -> Callable[..., Job]:
    """A training job of seconds on the tiny set; keyword arguments change fields of its recipe, `section__field` by section."""

    def make(out: str = "run", data: Path = tiny_set, resume: bool = False, **changes: object) -> Job:
        document: dict[str, dict[str, object] | object] = {
            "drafter": {"num_layers": 1, "block_size": 4, "num_features": 2, "mask_token_id": VOCAB - 1},
            "blocks": {"anchors": 16},
            "batches": {"tokens": 128, "max_length": 64, "per_step": 4, "buckets": 3},
            "heldout": {"every": 6, "rows": 6},
            "checkpoints": {"every": 3},
            "logging": {"every": 2, "tree_blocks": 4},
            "max_steps": 12,
            "epochs": 1e6,
        }
        for name, value in changes.items():
            section, _, field = name.partition("__")
            if field:
                document[section] = {**document.get(section, {}), field: value}  # type: ignore[dict-item]  # sections are dicts
            else:
                document[section] = value
        return Job(data=data, out=tmp_path / out, recipe=Recipe.model_validate(document), resume=resume)

    return make


@pytest.fixture
def write_set_rows() -> Callable[..., None]:
    """The function that writes rows as a `datasets` folder holds them."""
    return write_rows


def write_rows(folder: Path, rows: list[dict[str, object]], num_shards: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(num_shards):
        table = pa.Table.from_pylist(rows[shard::num_shards], schema=SCHEMA)
        with (
            pa.OSFile(str(folder / shard_name(shard, num_shards)), "wb") as file,
            pa.ipc.new_stream(file, SCHEMA) as out,
        ):
            out.write_table(table)


def _row(generator: np.random.Generator, number: int) -> dict[str, object]:
    length = int(generator.integers(12, 60))
    pattern = generator.integers(0, VOCAB - 1, 5)
    prompt = length // 4
    return {
        "input_ids": np.resize(pattern, length).tolist(),
        "loss_mask": [0] * prompt + [1] * (length - prompt),
        "seq_len": length,
        "id": f"row{number}",
        "source": "patterns",
        "domain": ("code", "math", "chat")[number % 3],
    }

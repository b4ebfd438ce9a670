"""What the tests of the drafter share: small packed batches and tiny targets of every supported kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3_5TextConfig, Qwen3Config

from training.batches import Batch
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
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

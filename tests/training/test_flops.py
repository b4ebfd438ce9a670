"""Model FLOPs agree with what torch counts in the real passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from tests.training.asking_inputs import TARGET, make_drafter, write_target
from training.batches import Batch
from training.blocks import lay_out_blocks
from training.flops import PEAK_TFLOPS, StepCost, drafter_products, measure_target, peak_flops


def counted(work: Callable[[], object], *names: str) -> int:
    """FLOP of the named operations."""
    with FlopCounterMode(display=False) as counter:
        work()
    return sum(n for op, n in counter.get_flop_counts()["Global"].items() if str(op).rpartition(".")[2] in names)


def test_a_targets_products_and_attention_are_what_its_forward_pass_runs(tmp_path: Path) -> None:
    size = measure_target(str(write_target(tmp_path / "target")))
    model = LlamaForCausalLM._from_config(TARGET, attn_implementation="eager")
    ids = torch.randint(3, 30, (1, 48))
    products = counted(lambda: model.model(input_ids=ids, use_cache=False), "mm", "addmm")
    assert products == 2 * size.active_parameters * 48
    # Attention computes the masked half of the square as well; the model needs half.
    square = counted(lambda: model.model(input_ids=ids, use_cache=False), "bmm")
    assert 4 * 24 * size.attention_width * 48 == square / 2
    assert size.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_of_experts_only_the_chosen_ones_count(tmp_path: Path) -> None:
    config = MixtralConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=40,
        num_local_experts=8, num_experts_per_tok=2,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    size = measure_target(str(tmp_path))
    experts, rest = 2 * 8 * 3 * 32 * 64, 2 * (2 * 32 * 32 + 2 * 32 * 16 + 8 * 32)
    assert size.active_parameters == experts // 4 + rest


def test_a_drafters_products_are_what_its_forward_and_backward_pass_run() -> None:
    drafter = make_drafter().train()
    fused, per_token, per_slot = drafter_products(drafter.config)
    batch_tokens, anchors, block = 64, 5, drafter.config.block_size
    layout = lay_out_blocks(
        _batch(batch_tokens), torch.arange(8, 8 + 9 * anchors, 9), torch.ones(anchors, dtype=torch.bool), block
    )
    context = torch.randn(batch_tokens, drafter.fc.in_features)
    embeds = torch.randn(anchors, block, drafter.config.hidden_size)
    products = counted(lambda: drafter(context, embeds, layout).sum().backward(), "mm", "addmm")
    assert products == batch_tokens * (4 * fused + 6 * per_token) + anchors * block * 6 * per_slot


def _batch(tokens: int) -> Batch:
    return Batch(
        input_ids_T=torch.randint(3, 30, (tokens,)),
        document_T=torch.zeros(tokens, dtype=torch.int64),
        position_T=torch.arange(tokens),
        loss_mask_T=torch.ones(tokens, dtype=torch.bool),
        row_ids=["0"],
        domains=["code"],
        bucket=0,
    )


def test_remembered_features_cost_nothing() -> None:
    cost = StepCost(target_token=10.0, context_token=3.0, block=7.0)
    assert cost.flops(2, 1) == 33.0
    assert cost.flops(2, 1, target_reads=False) == 13.0


def test_a_cpu_has_no_known_peak_and_float32_is_held_against_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops(torch.device("cpu"), torch.bfloat16) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert peak_flops(torch.device("cuda"), torch.bfloat16) == 1e12 * PEAK_TFLOPS["A100"]
    assert peak_flops(torch.device("cuda"), torch.float32) is None

"""Hand-written gradients against autograd's of the plain formula, to the last digits of float64."""

from __future__ import annotations

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from training.elementwise import Angles, RMSNorm, rotate, silu_times

pytestmark = pytest.mark.parity


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def test_gradients_are_those_of_finite_differences():
    norm = RMSNorm(8, 1e-6).double()
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
    cos, sin = torch.rand(3, 1, 4).double(), torch.rand(3, 1, 4).double()
    torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,)), (random(3, 2, 8), random(8))
    )
    torch.autograd.gradcheck(lambda x: rotate(x, Angles(cos, sin)), (random(3, 2, 8),))
    torch.autograd.gradcheck(silu_times, (random(3, 8), random(3, 8, seed=1)))


def test_normalisation_is_qwen3s():
    ours, theirs = RMSNorm(8, 1e-5), Qwen3RMSNorm(8, 1e-5)
    theirs.weight.data = ours.weight.data = torch.rand(8)
    x = torch.randn(5, 8)
    torch.testing.assert_close(ours(x), theirs(x))
    assert ours(x.bfloat16()).dtype == torch.bfloat16


def test_rotation_is_qwen3s():
    angle = torch.rand(1, 5, 4)
    cos, sin = (torch.cat([f(angle)] * 2, dim=-1) for f in (torch.cos, torch.sin))
    x = torch.randn(1, 2, 5, 8)
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin)
    found = rotate(x.transpose(1, 2), Angles(angle.cos()[..., None, :], angle.sin()[..., None, :]))
    torch.testing.assert_close(found.transpose(1, 2), expected)

"""Normalisation, rotation and gating, with gradients written by hand so that little is kept for the backward pass.

Autograd keeps every intermediate of these, in float32, and together they outweigh the matrix products' own inputs. Each of
these keeps its inputs only, which the neighbouring products hold anyway, and computes in float32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Root-mean-square normalisation over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return _RMSNorm.apply(x, self.weight, self.eps)


@dataclass(frozen=True)
class Angles:
    """Cosines and sines of the rotary embedding, float32 [..., 1, D / 2], one row per position."""

    cos: Tensor
    sin: Tensor


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Return x [..., heads, D] turned by the rotary angles of its positions (halves convention of Llama and Qwen)."""
    return _Rotate.apply(x, angles.cos, angles.sin)


def silu_times(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up (SwiGLU)."""
    return _SiluTimes.apply(gate, up)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _widen(x)
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        grad = _widen(grads[0])
        normed = _widen(x) * scale
        grad_weight = (grad * normed).flatten(0, -2).sum(dim=0)
        grad = grad * weight
        inward = (grad * normed).mean(dim=-1, keepdim=True)
        grad_x = grad.sub_(normed.mul_(inward)).mul_(scale)
        return grad_x.to(x.dtype), grad_weight.to(weight.dtype), None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, -sin), None, None


class _SiluTimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        silu = torch.nn.functional.silu(gate)
        return torch.ops.aten.silu_backward(grads[0] * up, gate), silu.mul_(grads[0])


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def _widen(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))

"""AdamW on float32 masters, the learning rate over a run, and an average of the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from training.recipe import OptimizerSettings


def build_optimizer(module: nn.Module, settings: OptimizerSettings) -> torch.optim.AdamW:
    """Return AdamW over the parameters of `module`; weight decay spares what is not a matrix."""
    matrices = [p for p in module.parameters() if p.ndim >= 2]
    others = [p for p in module.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, betas=settings.betas)


def learning_rate(settings: OptimizerSettings, step: int, total_steps: int) -> float:
    """Return the learning rate of 0-based `step` of a run of `total_steps`."""
    warmup = max(1, round(settings.warmup_frac * total_steps)) if settings.warmup_frac else 0
    if step < warmup:
        return settings.learning_rate * (step + 1) / warmup
    return settings.learning_rate * _after_warmup(settings, step, warmup, total_steps)


def _after_warmup(settings: OptimizerSettings, step: int, warmup: int, total_steps: int) -> float:
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "wsd":
        decay = max(1, round(settings.decay_frac * total_steps))
        left = min(1.0, (total_steps - step) / decay)
        return settings.final_frac + (1 - settings.final_frac) * left
    done = (step - warmup) / max(1, total_steps - warmup)
    return settings.final_frac + (1 - settings.final_frac) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def start_ema(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the parameters, by name, that `update_ema` averages into."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


@torch.no_grad()
def update_ema(ema: dict[str, Tensor], module: nn.Module, decay: float) -> None:
    """Move the average towards the parameters: average <- decay x average + (1 - decay) x parameter."""
    for name, parameter in module.named_parameters():
        ema[name].lerp_(parameter.detach(), 1 - decay)

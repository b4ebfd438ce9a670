"""What changes from step to step, how it begins, and how it is kept and found again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from training import checkpoint
from training.distributed import Ranks, shard_like, whole, wrap
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.job import Prepared
from training.losses import initial_survival
from training.optimization import build_optimizer, start_ema
from training.step import draw

FREE_TO_DIFFER = frozenset({"block_size", "dtype", "max_position_embeddings", "mask_token_id"})
"""Fields in which a drafter that training starts from may differ from the one that is trained."""


@dataclass
class State:
    """With the set and the recipe, all that the rest of a run depends on."""

    drafter: DFlashDrafter
    forward: nn.Module
    """What is called for the drafter's forward pass: itself, or what wraps it."""
    optimizer: torch.optim.AdamW
    ema: dict[str, Tensor] | None
    survival_S: Tensor | None
    """Running estimate of P(streak >= s), where the loss is weighted by it."""
    step: int = 0
    """Optimiser steps done; the data order goes on from here."""
    skips: int = 0
    """Steps whose update was left out."""
    mean_loss: float | None = None
    """Running mean of the loss, which spikes are judged by."""
    gradient_norm: float = 0.0
    """Of the last step, before clipping."""
    elapsed_s: float = 0.0
    """Training time over all sessions."""
    open_sums: Tensor | None = None
    """Metric sums since the last line of metrics, over all ranks."""


def begin(prepared: Prepared, ranks: Ranks, dtype: torch.dtype) -> State:
    """Return the state before the first step: fresh weights drawn from the seed, or those of `--init-from`."""
    recipe = prepared.job.recipe
    drafter = DFlashDrafter(prepared.config, recipe.compute.attention, recipe.compute.recompute_layers)
    if prepared.job.init_from is None:
        drafter.init_weights(draw(recipe.seed, "weights", 0))
    else:
        drafter.load_state_dict(starting_weights(prepared.job.init_from, prepared.config))
    drafter.to(ranks.device)
    if recipe.compute.compile:
        for layer in drafter.layers:
            layer.compile()
    forward = wrap(drafter, ranks, recipe.placement, dtype)
    return State(
        drafter=drafter,
        forward=forward,
        optimizer=build_optimizer(drafter, recipe.optimizer),
        ema=start_ema(drafter) if recipe.optimizer.ema_decay is not None else None,
        survival_S=initial_survival(prepared.config.block_size) if recipe.loss.weighting == "survival" else None,
    )


def save(state: State, prepared: Prepared, ranks: Ranks) -> None:
    """Write a checkpoint of the whole state and delete those that are no longer kept. Every drafter rank must call it."""
    parameters = dict(state.drafter.named_parameters())
    moments = {
        name: {key: whole(value) for key, value in state.optimizer.state[parameter].items()}
        for name, parameter in parameters.items()
        if parameter in state.optimizer.state
    }
    content = {
        "drafter": {name: whole(parameter.detach()) for name, parameter in parameters.items()},
        "moments": moments,
        "ema": None if state.ema is None else {name: whole(value) for name, value in state.ema.items()},
        "survival_S": state.survival_S,
        "skips": state.skips,
        "mean_loss": state.mean_loss,
        "gradient_norm": state.gradient_norm,
        "elapsed_s": state.elapsed_s,
        "open_sums": None if state.open_sums is None else state.open_sums.cpu(),
        "drafter_config": json.dumps(prepared.config.to_json()),
        "run": json.dumps(prepared.card),
    }
    if ranks.leads:
        settings, run = prepared.job.recipe.checkpoints, prepared.job.out
        checkpoint.save(run, state.step, content)
        checkpoint.prune(run, settings.keep_last, settings.keep_every)


@torch.no_grad()
def restore(state: State, prepared: Prepared, ranks: Ranks) -> list[str]:
    """Put the newest intact checkpoint of the run into `state`; return what there is to say about it.

    Raises:
        ValueError: `--resume` was given and there is none, or there are checkpoints and none is intact.
    """
    job = prepared.job
    folder, notes = checkpoint.newest_intact(job.out)
    if folder is None:
        if notes:
            raise ValueError(f"no checkpoint of {job.out} is intact: {'; '.join(notes)}; give --out for a new run")
        if job.resume:
            raise ValueError(f"--resume: {job.out} holds no checkpoint to go on from; leave it out to begin")
        return []
    kept = checkpoint.load(folder)
    for name, parameter in state.drafter.named_parameters():
        parameter.copy_(shard_like(kept["drafter"][name], parameter))
        if name in kept["moments"]:
            state.optimizer.state[parameter] = {
                key: value.clone() if key == "step" else shard_like(value, parameter.detach()).clone()
                for key, value in kept["moments"][name].items()
            }
        if state.ema is not None and kept["ema"] is not None:
            state.ema[name].copy_(shard_like(kept["ema"][name], state.ema[name]))
    state.step, state.skips, state.mean_loss = kept["step"], kept["skips"], kept["mean_loss"]
    state.gradient_norm, state.elapsed_s = kept["gradient_norm"], kept["elapsed_s"]
    state.survival_S = None if kept["survival_S"] is None else kept["survival_S"].clone()
    # Sums of all ranks are one rank's to carry on: they are summed again when the line is written.
    state.open_sums = kept["open_sums"] if ranks.leads else None
    return [*notes, f"going on from {folder}"]


def starting_weights(folder: Path, config: DrafterConfig) -> dict[str, Tensor]:
    """Return the weights of a drafter by name: of a run, of its step_N, or of a folder in z-lab's layout.

    Raises:
        ValueError: there is no drafter, or it has another shape; names the fields.
    """
    if (folder / "model.safetensors").is_file():
        found, weights = DrafterConfig.load(folder), load_file(folder / "model.safetensors")
    else:
        drafter = checkpoint.load_drafter(folder)
        found, weights = drafter.config, drafter.state_dict()
    ours, theirs = config.model_dump(), found.model_dump()
    differ = [
        f"{name} {theirs[name]}, not {ours[name]}"
        for name in ours
        if name not in FREE_TO_DIFFER and ours[name] != theirs[name]
    ]
    if differ:
        raise ValueError(f"--init-from {folder} has {'; '.join(differ)}; set the fields of `drafter` to match it")
    return weights

"""One optimiser step: micro-batches forward and back, gradients of the global weighted mean, and the update.

The loss of a step is the sum of w x loss over the sum of w, over all ranks and micro-batches. Ranks average gradients of their
sums, so gradients are scaled by ranks / weights once both are known; that is exact whatever the shares. Every draw is
seeded by (seed, purpose, place in the run): no random state is carried from step to step.

Letters: T packed tokens, A anchors, K slots, S = K - 1, H width.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from training.batches import Batch
from training.blocks import block_labels, block_token_ids, lay_out_blocks, predicting_hidden, sample_anchors
from training.drafter_config import DrafterConfig
from training.features import FeatureSource
from training.losses import LossOutput, block_loss
from training.recipe import Recipe
from training.target import Features


@dataclass(frozen=True)
class Objective:
    """What a micro-batch is trained on, apart from the weights."""

    recipe: Recipe
    config: DrafterConfig
    source: FeatureSource
    device: torch.device
    dtype: torch.dtype
    """Of matrix products; parameters are float32."""
    sharded: bool = False
    """FSDP casts parameters and inputs itself."""

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context in which the drafter runs: bfloat16 products on float32 masters, or float32 throughout."""
        if self.dtype == torch.float32 or self.sharded:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.dtype)


def micro_batch_loss(
    objective: Objective,
    forward: nn.Module,
    batch: Batch,
    features: Features,
    index: int,
    noise: float,
    survival_S: Tensor | None,
) -> tuple[LossOutput, Tensor]:
    """Return the loss of a micro-batch, with gradient, and document_A, the document of every block (-1 for padding).

    Args:
        objective: what is trained.
        forward: the drafter, or what wraps it.
        batch: on the device.
        features: of `batch`, on the device.
        index: place of the micro-batch in the run, which seeds its anchors and noise.
        noise: half-width of the feature noise now.
        survival_S: estimate of P(streak >= s), for survival weighting.
    """
    recipe, config, source = objective.recipe, objective.config, objective.source
    anchor_A, valid_A = sample_anchors(batch, recipe.blocks.anchors, draw(recipe.seed, "anchors", index))
    layout = lay_out_blocks(batch, anchor_A, valid_A, config.block_size)
    embeds_AKH = source.embed(block_token_ids(batch, layout, config.mask_token_id))
    generator = draw(recipe.seed, "noise", index, objective.device) if noise > 0 else None
    context_TF = features.hidden_TF.to(objective.dtype)
    with objective.arithmetic():
        hidden_AKH = forward(context_TF, embeds_AKH.to(objective.dtype), layout, noise, generator)
    labels_AS, label_mask_AS = block_labels(batch, layout)
    final_ASH = predicting_hidden(layout, features.final_TH) if recipe.loss.soft_kl > 0 else None
    output = block_loss(
        hidden_AKH,
        labels_AS,
        label_mask_AS,
        source.head_VH,
        recipe.loss,
        final_ASH,
        survival_S,
        recipe.logging.tree_blocks,
    )
    return output, layout.document_A


def scale_gradients(module: nn.Module, scale: float) -> float:
    """Multiply all gradients by `scale` and return their norm."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    torch._foreach_mul_(gradients, scale)
    norm = get_total_norm(gradients)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def clip_gradients(module: nn.Module, norm: float, most: float) -> None:
    """Scale gradients of total norm `norm` down to `most` where they exceed it."""
    clip_grads_with_norm_(module.parameters(), most, torch.tensor(norm))


def draw(seed: int, purpose: str, index: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator for one draw: the same for the same seed, purpose and place, whatever was drawn before."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{index}".encode(), digest_size=7).digest()
    return torch.Generator(device=device).manual_seed(int.from_bytes(digest, "little"))

"""Model FLOPs of a run: the matrix products that its objective cannot do without, whatever the kernels do.

Counted are the target's forward pass over the context, and the drafter's forward and backward pass over context and blocks, with
the frozen lm_head forward and for the gradient of hidden states. Recomputed activations, masked scores, padding, norms and the
optimiser are not: model FLOPs utilisation (PaLM, arXiv 2204.02311, appendix B) is what a run achieves of the hardware's peak
on the work itself. Attention is counted at the set's mean context, half of a document as its tokens see it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.job import Prepared

PEAK_TFLOPS = {
    "A100": 312,
    "H100": 989,
    "H200": 989,
    "GH200": 989,
    "B200": 2250,
    "GB200": 2250,
    "L40S": 362,
    "H20": 148,
}
"""Dense bfloat16 products per second as NVIDIA's data sheets state them (SXM parts), by a word of the device's name."""


@dataclass(frozen=True)
class TargetSize:
    """What of a target takes part in reading a token."""

    parameters: int
    """All of them."""
    active_parameters: int
    """In the products of one token's pass through the layers: no embedding, no lm_head, of experts the chosen ones."""
    attention_width: int
    """Heads times head width, summed over the layers that attend to all tokens before."""


@dataclass(frozen=True)
class StepCost:
    """FLOP per unit of what training works through."""

    target_token: float
    """The target reads a token."""
    context_token: float
    """The drafter projects a token of context, forward and backward."""
    block: float
    """The drafter fills a block and learns from it, lm_head included."""

    def flops(self, tokens: float, blocks: float, target_reads: bool = True) -> float:
        """Return the FLOP of so many context tokens and blocks. `target_reads`: the features are computed, not remembered."""
        return tokens * (self.context_token + target_reads * self.target_token) + blocks * self.block


def step_cost(prepared: Prepared) -> StepCost:
    """Return the costs of a job; its models are counted on the meta device."""
    config = prepared.config
    target = measure_target(prepared.target, prepared.job.trust_remote_code)
    lengths = prepared.store.lengths.astype(np.float64)
    context = float((lengths**2).sum() / lengths.sum() / 2)
    fused, per_token, per_slot = drafter_products(config)
    queries = config.num_attention_heads * config.head_dim
    layers, slots = config.num_hidden_layers, config.block_size
    pairs = layers * slots * (context + slots) * queries
    # A product costs two operations forward and four backward; fc's input and lm_head need no gradient; attention has two products.
    head = (slots - 1) * prepared.facts.vocab_size * config.hidden_size
    return StepCost(
        target_token=2.0 * target.active_parameters + 4.0 * context * target.attention_width,
        context_token=4.0 * fused + 6.0 * per_token,
        block=6.0 * slots * per_slot + 12.0 * pairs + 4.0 * head,
    )


def drafter_products(config: DrafterConfig) -> tuple[int, int, int]:
    """Return the weights that a context token is multiplied with in fc, those of keys and values in every layer, and those that a
    slot is multiplied with."""
    with torch.device("meta"):
        drafter = DFlashDrafter(config)
    matrices = {name: parameter.numel() for name, parameter in drafter.named_parameters() if parameter.dim() == 2}
    fused = matrices.pop("fc.weight")
    return (
        fused,
        sum(n for name, n in matrices.items() if ".k_proj." in name or ".v_proj." in name),
        sum(matrices.values()),
    )


def measure_target(model: str, trust_remote_code: bool = False) -> TargetSize:
    """Return the size of a target from its configuration; nothing is loaded."""
    loaded = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(loaded, trust_remote_code=trust_remote_code)
    text = loaded.get_text_config()
    outside = {id(built.get_input_embeddings().weight), id(built.get_output_embeddings().weight)}
    experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None)
    chosen = getattr(text, "num_experts_per_tok", None)
    share = chosen / experts if experts and chosen else 1.0
    active = 0.0
    for name, parameter in built.named_parameters():
        if parameter.dim() >= 2 and id(parameter) not in outside:
            active += parameter.numel() * (share if ".experts." in name else 1.0)
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return TargetSize(
        parameters=sum(parameter.numel() for parameter in built.parameters()),
        active_parameters=int(active),
        attention_width=kinds.count("full_attention") * text.num_attention_heads * head_dim,
    )


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Return the peak of a device in FLOP per second where it is known, for bfloat16 products only."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return None
    words = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((1e12 * PEAK_TFLOPS[word] for word in words if word in PEAK_TFLOPS), None)

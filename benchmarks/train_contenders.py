"""What `train.py` times: one training step, three ways, on the same weights, tensors and (where they can be given) anchors.

- `ours`: Draftmill's.
- `plain`: the field's method written down plainly. Context and all blocks laid end to end as keys under one dense mask, PyTorch's
  own attention, logits of every slot kept for autograd.
- `speculators`: the DFlash model of the package of that name with eager attention, where it is installed. It draws its anchors
  itself, as many, and computes the target's logits besides (its labels are the target's choices).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.attention import visible
from training.batches import Batch
from training.blocks import BlockLayout, block_labels, block_token_ids, lay_out_blocks, sample_anchors
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.elementwise import rotate
from training.losses import block_loss, slot_weights
from training.settings import LossSettings

WIDTH, HEADS, KEY_HEADS, HEAD_DIM, MLP, FEATURES = 576, 9, 3, 64, 1536, 5
"""SmolLM2-135M's shape, and five of its layers as features."""

MASK_ID = 5


@dataclass(frozen=True)
class Case:
    """Sizes of a step."""

    context: int
    anchors: int
    block_size: int
    layers: int
    vocab: int

    def matmul_flops(self) -> float:
        """Return the operations of the matrix products that a step cannot do without, forward and backward."""
        slots, predicted = self.anchors * self.block_size, self.anchors * (self.block_size - 1)
        keys = 2 * WIDTH * KEY_HEADS * HEAD_DIM
        layer = 2 * WIDTH * HEADS * HEAD_DIM + keys + 3 * WIDTH * MLP
        pairs = slots * (self.context / 2 + self.block_size) * HEADS * HEAD_DIM
        trained = slots * self.layers * layer + self.context * (self.layers * keys + FEATURES * WIDTH * WIDTH)
        # Trained weights: forward, gradient of inputs, gradient of weights. Attention: two products, four gradients. Head: frozen.
        return 2 * (3 * trained + self.layers * 6 * pairs + 2 * predicted * WIDTH * self.vocab)


@dataclass(frozen=True)
class Inputs:
    """Everything that a step is given, on one device."""

    case: Case
    batch: Batch
    layout: BlockLayout
    features_TF: Tensor
    embed_VH: Tensor
    drafter: DFlashDrafter
    dtype: torch.dtype


def prepare(case: Case, dtype: torch.dtype, device: str) -> Inputs:
    """Return seeded random inputs: one document, all of it supervised."""
    generator = torch.Generator().manual_seed(0)
    batch = Batch(
        input_ids_T=torch.randint(MASK_ID + 1, case.vocab, (case.context,), generator=generator),
        document_T=torch.zeros(case.context, dtype=torch.int64),
        position_T=torch.arange(case.context),
        loss_mask_T=torch.ones(case.context, dtype=torch.bool),
        row_ids=["0"],
        domains=["random"],
        bucket=0,
    ).to(torch.device(device))
    config = DrafterConfig(
        hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=case.layers, num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS, head_dim=HEAD_DIM, vocab_size=case.vocab, num_target_layers=30,
        target_layer_ids=(1, 8, 14, 20, 27), mask_token_id=MASK_ID, block_size=case.block_size,
        layer_types=("full_attention",) * case.layers,
    )  # fmt: skip
    drafter = DFlashDrafter(config)
    drafter.init_weights(generator)
    anchor_A, valid_A = sample_anchors(batch, case.anchors, generator)
    return Inputs(
        case=case,
        batch=batch,
        layout=lay_out_blocks(batch, anchor_A, valid_A, case.block_size),
        features_TF=torch.randn(case.context, FEATURES * WIDTH, generator=generator).to(device, dtype),
        embed_VH=(torch.randn(case.vocab, WIDTH, generator=generator) * 0.05).to(device, dtype),
        drafter=drafter.to(device),
        dtype=dtype,
    )


def ours(inputs: Inputs) -> Callable[[], float]:
    """Return Draftmill's step: it leaves gradients behind and returns the loss."""

    def step() -> float:
        embeds_AKH = inputs.embed_VH[block_token_ids(inputs.batch, inputs.layout, MASK_ID)]
        with torch.autocast(inputs.embed_VH.device.type, torch.bfloat16, enabled=inputs.dtype == torch.bfloat16):
            hidden_AKH = inputs.drafter(inputs.features_TF, embeds_AKH, inputs.layout)
        labels = block_labels(inputs.batch, inputs.layout)
        found = block_loss(hidden_AKH, *labels, inputs.embed_VH, LossSettings())
        loss = found.loss_sum / found.weight_sum
        loss.backward()
        return loss.item()

    return step


def plain(inputs: Inputs) -> Callable[[], float]:
    """Return the plain step on the same weights: the same loss and gradients, to rounding."""
    case, drafter = inputs.case, inputs.drafter

    def step() -> float:
        embeds_AKH = inputs.embed_VH[block_token_ids(inputs.batch, inputs.layout, MASK_ID)]
        with torch.autocast(inputs.embed_VH.device.type, torch.bfloat16, enabled=inputs.dtype == torch.bfloat16):
            hidden_AKH = plain_forward(drafter, inputs.features_TF, embeds_AKH, inputs.layout)
            logits = F.linear(hidden_AKH[:, 1:], inputs.embed_VH)
        labels_AS, mask_AS = block_labels(inputs.batch, inputs.layout)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), labels_AS.flatten(), reduction="none")
        weights = (slot_weights(LossSettings(), case.block_size).to(mask_AS.device) * mask_AS).flatten()
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        return loss.item()

    return step


def plain_forward(drafter: DFlashDrafter, features_TF: Tensor, embeds_AKH: Tensor, layout: BlockLayout) -> Tensor:
    """Return hidden_AKH through one dense mask over [context, all blocks]."""
    num_slots = layout.num_blocks * layout.block_size
    context_AKT, own_AKK = visible(layout, None)
    seen = torch.block_diag(*own_AKK).bool()
    seen = torch.cat([context_AKT.reshape(num_slots, -1), seen], dim=1)
    context_TH = drafter.hidden_norm(drafter.fc(features_TF))
    angles, slot_angles = drafter.angles(layout.context_position_T), drafter.angles(layout.slot_position_AK)
    hidden = embeds_AKH.to(context_TH.dtype)
    for layer in drafter.layers:
        attention, normed = layer.self_attn, layer.input_layernorm(hidden)
        queries = rotate(attention.q_norm(attention.q_proj(normed).unflatten(-1, (-1, HEAD_DIM))), slot_angles)
        context, own = attention.keys_values(context_TH, angles), attention.keys_values(normed, slot_angles)
        keys, values = (
            torch.cat([before, mine.flatten(0, 1)]).repeat_interleave(HEADS // KEY_HEADS, dim=1).transpose(0, 1)
            for before, mine in ((context.keys, own.keys), (context.values, own.values))
        )
        queries = queries.flatten(0, 1).transpose(0, 1)
        mixed = F.scaled_dot_product_attention(queries[None], keys[None], values[None], attn_mask=seen)
        hidden = hidden + attention.o_proj(mixed[0].transpose(0, 1).flatten(1).view_as(normed))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return drafter.norm(hidden)


def speculators(inputs: Inputs) -> Callable[[], float]:
    """Return the step of the `speculators` package on the same weights; ImportError where it is not installed."""
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import DFlashSpeculatorConfig
    from speculators.models.dflash.core import DFlashDraftModel
    from transformers import Qwen3Config

    case, config = inputs.case, inputs.drafter.config
    layers = Qwen3Config(**{k: v for k, v in config.to_json().items() if k not in ("auto_map", "architectures")})
    layers._attn_implementation = "eager"
    peer = DFlashDraftModel(
        DFlashSpeculatorConfig(
            transformer_layer_config=layers,
            draft_vocab_size=case.vocab,
            block_size=case.block_size,
            aux_hidden_state_layer_ids=[i + 1 for i in config.target_layer_ids],
            mask_token_id=MASK_ID,
        )
    )
    peer.load_state_dict(inputs.drafter.state_dict(), strict=False)
    for name in ("embed_tokens", "lm_head", "verifier_lm_head"):
        getattr(peer, name).weight.data = inputs.embed_VH
    losses = resolve_loss_config("ce", "fused" if inputs.embed_VH.is_cuda else "eager")
    final_TH = torch.randn(case.context, WIDTH, generator=torch.Generator().manual_seed(2)).to(inputs.dtype)
    batch = inputs.batch

    def step() -> float:
        with torch.autocast(inputs.embed_VH.device.type, torch.bfloat16, enabled=inputs.dtype == torch.bfloat16):
            _, loss, _ = peer(
                inputs.features_TF[None],
                batch.input_ids_T[None],
                batch.loss_mask_T[None].long(),
                final_TH[None],
                batch.document_T[None],
                batch.position_T[None],
                loss_config=losses,
                gamma=case.block_size / 2,
                max_anchors=case.anchors,
            )
        loss.backward()
        return loss.item()

    return step


CONTENDERS = {"ours": ours, "plain": plain, "speculators": speculators}

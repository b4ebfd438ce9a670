"""The drafter: what a block may see, packing, decoding with a cache, and configurations that cannot work."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    rotate_half,
)

from training.blocks import block_token_ids, lay_out_blocks, sample_anchors
from training.drafter import noise_width
from training.drafter_config import (
    DrafterConfig,
    DrafterSettings,
    TargetFacts,
    configure,
    default_target_layer_ids,
)
from training.target import target_facts

SHAPES = {
    "full": {},
    "sliding": {"layer_types": ("sliding_attention", "sliding_attention"), "sliding_window": 6},
    "mixed": {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 9},
}
shapes = pytest.mark.parametrize("shape", SHAPES)


def run(target, model, batch, anchor_A, valid_A, **noise):
    """The training forward pass: hidden_AKH."""
    config = model.config
    features = target.features(batch, config.target_layer_ids)
    layout = lay_out_blocks(batch, anchor_A, valid_A, config.block_size)
    embeds = target.embed(block_token_ids(batch, layout, config.mask_token_id))
    dtype = model.fc.weight.dtype
    return model(features.hidden_TF.to(dtype), embeds.to(dtype), layout, **noise)


def anchors(batch, budget=12, seed=2):
    return sample_anchors(batch, budget, torch.Generator().manual_seed(seed))


@pytest.mark.leak
@shapes
def test_changing_any_token_at_or_after_an_anchor_changes_only_the_anchors_own_embedding(
    any_target, drafter, random_batch, shape
):
    model = drafter(dtype=torch.float32, **SHAPES[shape])
    batch = random_batch([40, 25, 30])
    anchor_A, valid_A = anchors(batch)
    before = run(any_target, model, batch, anchor_A, valid_A)
    for block in range(12):
        anchor, document = int(anchor_A[block]), batch.document_T[anchor_A[block]]
        hidden = torch.arange(len(batch.input_ids_T)) > anchor
        hidden |= batch.document_T != document
        ids = torch.where(hidden, (batch.input_ids_T + 13) % 90, batch.input_ids_T)
        after = run(any_target, model, replace(batch, input_ids_T=ids), anchor_A, valid_A)
        assert torch.equal(after[block], before[block])


@pytest.mark.leak
@shapes
def test_the_anchors_own_feature_is_not_seen(target, drafter, random_batch, shape):
    model = drafter(dtype=torch.float32, **SHAPES[shape])
    batch = random_batch([40, 25])
    anchor_A, valid_A = anchors(batch)
    layout = lay_out_blocks(batch, anchor_A, valid_A, 5)
    embeds = target.embed(block_token_ids(batch, layout, 95))
    context_TF = target.features(batch, (1, 3, 5)).hidden_TF
    before = model(context_TF, embeds, layout)
    for block in range(12):
        changed = context_TF.clone()
        changed[int(anchor_A[block]) :] += 1
        assert torch.equal(model(changed, embeds, layout)[block], before[block])
        changed[int(anchor_A[block]) - 1] += 1
        assert not torch.equal(model(changed, embeds, layout)[block], before[block])


@pytest.mark.leak
@shapes
def test_another_blocks_slots_change_nothing_to_the_bit(target, drafter, random_batch, shape):
    model = drafter(dtype=torch.float32, **SHAPES[shape])
    batch = random_batch([40, 25])
    anchor_A, valid_A = anchors(batch)
    layout = lay_out_blocks(batch, anchor_A, valid_A, 5)
    embeds = target.embed(block_token_ids(batch, layout, 95))
    context_TF = target.features(batch, (1, 3, 5)).hidden_TF
    before = model(context_TF, embeds, layout)
    for block in range(12):
        others = (torch.arange(12) != block)[:, None, None]
        assert torch.equal(model(context_TF, torch.where(others, embeds + 3, embeds), layout)[block], before[block])


@pytest.mark.parity
@shapes
def test_packed_equals_unpacked(target, drafter, random_batch, pack, shape):
    model = drafter(**SHAPES[shape])
    batch = random_batch([40, 25, 30])
    anchor_A, valid_A = anchors(batch)
    together = run(target, model, batch, anchor_A, valid_A)
    for document in range(3):
        mine = batch.document_T[anchor_A] == document
        rows = torch.nonzero(batch.document_T == document).squeeze(1)
        alone = pack([(batch.input_ids_T[rows].tolist(), batch.loss_mask_T[rows].tolist())])
        found = run(target, model, alone, anchor_A[mine] - rows[0], valid_A[mine])
        torch.testing.assert_close(found, together[mine], rtol=1e-4, atol=1e-4)


@pytest.mark.parity
@shapes
def test_training_outputs_equal_those_of_decoding_with_a_cache_block_after_block(
    any_target, drafter, random_batch, shape
):
    model = drafter(**SHAPES[shape])
    batch = random_batch([48], padding=0)
    positions = torch.tensor([4, 5, 9, 10, 14, 22, 30, 31, 40])
    training = run(any_target, model, batch, positions, torch.ones_like(positions, dtype=torch.bool))
    cache = model.empty_cache()
    target_cache = any_target.open_cache()
    for block, position in enumerate(positions.tolist()):
        new = batch.input_ids_T[cache.length : position]
        step = any_target.extend(target_cache, new, (1, 3, 5))
        model.extend(cache, step.features_NF.double())
        ids_K = torch.full((5,), 95)
        ids_K[0] = batch.input_ids_T[position]
        drafted = model.draft(cache, any_target.embed(ids_K).double())
        torch.testing.assert_close(drafted, training[block], rtol=1e-4, atol=1e-4)


class ReferenceDrafter(nn.Module):
    """DFlash as its config.json and weight names define it, on transformers' Qwen3 parts: one text, one block, no packing."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        found = config.to_json()
        self.qwen3 = Qwen3Config(**{name: found[name] for name in found if name not in ("architectures", "auto_map")})
        self.layers = nn.ModuleList(Qwen3DecoderLayer(self.qwen3, i) for i in range(config.num_hidden_layers))
        width = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * width, width, bias=False)
        self.hidden_norm, self.norm = (Qwen3RMSNorm(width, config.rms_norm_eps) for _ in range(2))
        self.rotary = Qwen3RotaryEmbedding(self.qwen3)

    def forward(self, context_TF, hidden_KH):
        context, num_slots = self.hidden_norm(self.fc(context_TF)), len(hidden_KH)
        position = torch.arange(len(context) + num_slots)
        cos, sin = (x[0].to(hidden_KH.dtype) for x in self.rotary(torch.zeros(1), position[None]))
        query_position, behind = position[-num_slots:], position[-num_slots:, None] - position
        for layer, kind in zip(self.layers, self.qwen3.layer_types, strict=True):
            attention, normed = layer.self_attn, layer.input_layernorm(hidden_KH)
            heads = (-1, attention.head_dim)
            queries = attention.q_norm(attention.q_proj(normed).unflatten(-1, heads)).transpose(0, 1)
            seen = torch.cat([context, normed])
            keys = attention.k_norm(attention.k_proj(seen).unflatten(-1, heads)).transpose(0, 1)
            values = attention.v_proj(seen).unflatten(-1, heads).transpose(0, 1)
            queries = queries * cos[query_position] + rotate_half(queries) * sin[query_position]
            keys = keys * cos + rotate_half(keys) * sin
            window = self.qwen3.sliding_window
            mask = (behind >= 0) & (behind < window) if kind == "sliding_attention" else None
            mixed = nn.functional.scaled_dot_product_attention(
                queries[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
            )
            hidden_KH = hidden_KH + attention.o_proj(mixed[0].transpose(0, 1).flatten(1))
            hidden_KH = hidden_KH + layer.mlp(layer.post_attention_layernorm(hidden_KH))
        return self.norm(hidden_KH)


@pytest.mark.parity
@shapes
def test_training_outputs_equal_those_of_the_published_model_on_the_exported_weights(
    target, drafter, random_batch, shape
):
    model = drafter(**SHAPES[shape])
    published = ReferenceDrafter(model.config).double()
    published.load_state_dict(model.state_dict(), strict=True)
    batch = random_batch([40, 25])
    anchor_A, valid_A = anchors(batch)
    layout = lay_out_blocks(batch, anchor_A, valid_A, 5)
    embeds = target.embed(block_token_ids(batch, layout, 95)).double()
    context_TF = target.features(batch, (1, 3, 5)).hidden_TF.double()
    found = model(context_TF, embeds, layout)
    for block in range(12):
        start, stop = int(layout.document_start_A[block]), int(anchor_A[block])
        torch.testing.assert_close(found[block], published(context_TF[start:stop], embeds[block]), rtol=1e-5, atol=1e-5)


@pytest.mark.parity
def test_a_cropped_cache_is_the_shorter_texts_cache(target, drafter, random_batch):
    model, features = drafter(), torch.randn(20, 96, dtype=torch.float64)
    cache, shorter = model.empty_cache(), model.empty_cache()
    model.extend(cache, features)
    cache.crop(12)
    model.extend(shorter, features[:12])
    embeds = torch.randn(5, 32, dtype=torch.float64)
    torch.testing.assert_close(model.draft(cache, embeds), model.draft(shorter, embeds))


@pytest.mark.parity
@shapes
def test_projecting_the_context_first_gives_what_one_pass_gives(target, drafter, random_batch, shape):
    model, batch = drafter(**SHAPES[shape]), random_batch([40, 25])
    layout = lay_out_blocks(batch, *anchors(batch), 5)
    features, embeds = torch.randn(68, 96, dtype=torch.float64), torch.randn(12, 5, 32, dtype=torch.float64)
    context = model.project_context(features, batch.position_T)
    torch.testing.assert_close(model.fill_blocks(context, embeds, layout), model(features, embeds, layout))


@pytest.mark.parity
def test_recomputing_layers_in_the_backward_pass_changes_no_gradient(target, drafter, random_batch):
    batch = random_batch([40, 25])
    gradients = []
    for recompute in (False, True):
        model = drafter()
        model.recompute_layers = recompute
        run(target, model, batch, *anchors(batch)).square().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_noise_moves_the_drafter_and_leaves_the_target_alone_to_the_bit(target, drafter, random_batch):
    model, batch = drafter(), random_batch([40, 25])
    anchor_A, valid_A = anchors(batch)
    before = target.features(batch, (1, 3, 5))
    quiet = run(target, model, batch, anchor_A, valid_A)
    noisy = run(target, model, batch, anchor_A, valid_A, noise=0.05, generator=torch.Generator().manual_seed(1))
    again = run(target, model, batch, anchor_A, valid_A, noise=0.05, generator=torch.Generator().manual_seed(1))
    after = target.features(batch, (1, 3, 5))
    assert not torch.equal(noisy, quiet) and torch.equal(noisy, again)
    assert torch.equal(before.final_TH, after.final_TH) and torch.equal(before.hidden_TF, after.hidden_TF)
    assert torch.equal(target.logits(before.final_TH), target.logits(after.final_TH))


def test_noise_grows_from_zero_over_the_warmup_and_stays():
    settings = DrafterSettings(feature_noise=0.05, feature_noise_warmup_frac=0.1)
    assert [round(noise_width(settings, step, 100), 4) for step in (0, 5, 10, 99)] == [0.0, 0.025, 0.05, 0.05]
    assert noise_width(DrafterSettings(), 50, 100) == 0


@pytest.mark.parametrize(
    ("layers", "features", "expected"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (30, 5, (1, 8, 14, 20, 27)),
        (36, 1, (18,)),
        (8, 3, (1, 3, 5)),
    ],
)
def test_feature_layers_are_spread_as_z_lab_spreads_them(layers, features, expected):
    assert default_target_layer_ids(layers, features) == expected


def test_too_many_features_for_a_shallow_target_say_what_fits():
    with pytest.raises(ValueError, match="at most 3"):
        default_target_layer_ids(6, 5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_layer_ids": (1, 7)}, "last layer"),
        ({"target_layer_ids": (1, 9)}, "must lie in 0..6"),
        ({"target_layer_ids": (3, 1)}, "ascending"),
        ({"mask_token_id": 96}, "outside the target's vocabulary of 96"),
        ({"num_key_value_heads": 3}, "no multiple"),
        ({"layer_types": ("full_attention",)}, "names 1 layers"),
        ({"layer_types": ("sliding_attention", "full_attention")}, "sliding_window is unset"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope_type 'dynamic' is not supported"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(drafter_config, changes, says):
    with pytest.raises(ValueError, match=says):
        drafter_config(**changes)


@pytest.mark.parity
@shapes
def test_a_configuration_survives_z_labs_config_json(drafter_config, shape):
    config = drafter_config(**SHAPES[shape])
    assert DrafterConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_published_config_json_is_read():
    published = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 16, "num_target_layers": 36,
        "dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}, "attention_bias": False,
        "head_dim": 128, "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_hidden_layers": 5, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
        "rope_theta": 1000000, "vocab_size": 151936, "max_position_embeddings": 40960, "dtype": "bfloat16",
    }  # fmt: skip
    config = DrafterConfig.from_json(published)
    assert config.target_layer_ids == (1, 9, 17, 25, 33)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 1000000}
    assert config.layer_types == ("full_attention",) * 5


def test_variants_that_are_not_computed_here_are_refused_by_name(drafter_config):
    found = drafter_config().to_json()
    found["dflash_config"]["selector_rank"] = 256
    with pytest.raises(ValueError, match="selector_rank"):
        DrafterConfig.from_json(found)
    with pytest.raises(ValueError, match="not a DFlash config.json: .*mask_token_id"):
        DrafterConfig.from_json(drafter_config().to_json() | {"dflash_config": {"target_layer_ids": [1]}})


def test_the_drafter_takes_its_shape_from_the_target(any_target):
    config = configure(DrafterSettings(num_layers=1, block_size=8, num_features=3), any_target.facts, mask_token_id=95)
    assert (config.hidden_size, config.vocab_size, config.num_target_layers, config.mask_token_id) == (32, 96, 8, 95)
    assert config.rope_parameters["rope_type"] == "default"


def test_a_target_of_experts_only_needs_a_width_for_the_mlp(any_target):
    experts = TargetFacts(**{**vars(any_target.facts), "intermediate_size": None})
    with pytest.raises(ValueError, match="set drafter.intermediate_size"):
        configure(DrafterSettings(), experts, mask_token_id=1)


def test_rotary_facts_leave_out_what_is_the_targets_own():
    class Text:
        hidden_size, num_hidden_layers, vocab_size, num_attention_heads, max_position_embeddings = 64, 8, 96, 4, 512
        rope_parameters = {
            "rope_type": "default",
            "rope_theta": 1e7,
            "mrope_section": [1],
            "partial_rotary_factor": 0.25,
        }

        def get_text_config(self):
            return self

    assert target_facts(Text()).rope_parameters == {"rope_type": "default", "rope_theta": 1e7}

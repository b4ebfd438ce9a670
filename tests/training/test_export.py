"""`drafter export`: what is written is the drafter that went in, by every convention in which layouts differ."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config

from tests.training.asking_inputs import make_drafter, write_run, write_target
from training.drafter_files import open_drafter, read_exported
from training.export import ExportOptions, export, launch_lines
from training.target import Target
from training.target_ends import read_ends

FULL = {"layer_types": ("full_attention", "full_attention")}
SLIDING = {"layer_types": ("sliding_attention", "sliding_attention"), "sliding_window": 8}
MIXED = {"layer_types": ("sliding_attention", "full_attention"), "sliding_window": 8}
needs_speculators = pytest.mark.skipif(importlib.util.find_spec("speculators") is None, reason="needs speculators")
needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vllm")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("target"))


@pytest.fixture
def run(tmp_path: Path) -> SimpleNamespace:
    drafter = make_drafter()
    return SimpleNamespace(drafter=drafter, folder=write_run(tmp_path / "run", drafter))


def exported(folder: Path, out: Path, **changes: object) -> Path:
    export(ExportOptions(run=folder, out=out, **changes))
    return out


@pytest.mark.parametrize(
    ("layout", "shape"),
    [("zlab", FULL), ("zlab", SLIDING), ("zlab", MIXED), ("speculators", FULL), ("speculators", SLIDING)],
)
def test_an_export_reads_back_as_the_drafter_that_went_in(
    tmp_path: Path, target: Path, layout: str, shape: dict
) -> None:
    drafter = make_drafter(**shape)
    folder = exported(
        write_run(tmp_path / "run", drafter), tmp_path / "out", layout=layout, target=str(target), dtype="float32"
    )
    back = read_exported(folder)
    assert back.config.model_dump(exclude={"dtype"}) == drafter.config.model_dump(exclude={"dtype"})
    assert all(torch.equal(back.state_dict()[name], weight) for name, weight in drafter.state_dict().items())


def test_layouts_convert_into_each_other_to_the_byte(run: SimpleNamespace, tmp_path: Path, target: Path) -> None:
    zlab = exported(run.folder, tmp_path / "zlab", target=str(target))
    speculators = exported(zlab, tmp_path / "speculators", layout="speculators", target=str(target))
    again = exported(speculators, tmp_path / "again")
    for name in ("config.json", "model.safetensors"):
        assert (again / name).read_bytes() == (zlab / name).read_bytes()


def test_rounding_to_bfloat16_is_measured_and_said(run: SimpleNamespace, tmp_path: Path) -> None:
    found = export(ExportOptions(run=run.folder, out=tmp_path / "out"))
    assert 0 < found.rounding < 0.05
    assert 0 <= found.same_top_frac <= 1
    assert load_file(tmp_path / "out" / "model.safetensors")["fc.weight"].dtype == torch.bfloat16
    exact = export(ExportOptions(run=run.folder, out=tmp_path / "exact", dtype="float32"))
    assert (exact.rounding, exact.same_top_frac) == (0.0, 1.0)


def test_layer_numbers_are_outputs_in_zlabs_layout_and_count_the_embedding_in_speculators(
    run: SimpleNamespace, tmp_path: Path, target: Path
) -> None:
    zlab = json.loads((exported(run.folder, tmp_path / "zlab") / "config.json").read_text())
    folder = exported(run.folder, tmp_path / "speculators", layout="speculators", target=str(target))
    speculators = json.loads((folder / "config.json").read_text())
    ids = list(run.drafter.config.target_layer_ids)
    assert zlab["dflash_config"]["target_layer_ids"] == ids
    assert speculators["aux_hidden_state_layer_ids"] == [layer + 1 for layer in ids]

    model = AutoModelForCausalLM.from_pretrained(target)
    prompt = torch.arange(3, 9)
    hidden = model(input_ids=prompt[None], output_hidden_states=True).hidden_states
    seen = Target(model)
    features = seen.extend(seen.open_cache(), prompt, tuple(ids)).features_NF
    expected = torch.cat([hidden[layer][0] for layer in speculators["aux_hidden_state_layer_ids"]], dim=-1)
    assert torch.allclose(features, expected, atol=1e-6)


def test_the_anchor_proposes_nothing(run: SimpleNamespace, tmp_path: Path, target: Path) -> None:
    folder = exported(run.folder, tmp_path / "speculators", layout="speculators", target=str(target))
    config = json.loads((folder / "config.json").read_text())
    assert config["sample_from_anchor"] is False
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    lines = launch_lines(folder, "zlab", "T", 6)
    assert '"num_speculative_tokens": 5' in lines["vLLM"]
    assert lines["SGLang"].endswith("--speculative-num-draft-tokens 6")


def test_the_window_survives_the_configuration_class_that_drops_it(tmp_path: Path) -> None:
    sliding = exported(write_run(tmp_path / "a", make_drafter(**MIXED)), tmp_path / "sliding")
    full = exported(write_run(tmp_path / "b", make_drafter(**FULL)), tmp_path / "full")
    assert Qwen3Config.from_pretrained(sliding).sliding_window == 8
    assert Qwen3Config.from_pretrained(sliding).layer_types == ["sliding_attention", "full_attention"]
    assert Qwen3Config.from_pretrained(full).sliding_window is None


def test_mixed_layers_are_refused_where_the_layout_has_one_causality(tmp_path: Path, target: Path) -> None:
    run = write_run(tmp_path / "run", make_drafter(**MIXED))
    with pytest.raises(ValueError, match="export it with --layout zlab"):
        export(ExportOptions(run=run, out=tmp_path / "out", layout="speculators", target=str(target)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sample_from_anchor": True}, "slot 0 proposes"),
        ({"draft_vocab_size": 32}, "vocabulary of its own"),
        ({"speculators_model_type": "dspark"}, "dspark"),
        ({"aux_hidden_state_layer_ids": [2, 6]}, "the target's last layer"),
    ],
)
def test_speculators_variants_are_refused_by_name(
    run: SimpleNamespace, tmp_path: Path, target: Path, changes: dict, said: str
) -> None:
    folder = exported(run.folder, tmp_path / "out", layout="speculators", target=str(target))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=said):
        open_drafter(folder)


@pytest.mark.hostile
def test_weights_that_the_configuration_does_not_describe_are_refused_by_name(
    run: SimpleNamespace, tmp_path: Path
) -> None:
    folder = exported(run.folder, tmp_path / "out")
    weights = load_file(folder / "model.safetensors")
    wrong = {name: weight for name, weight in weights.items() if name != "norm.weight"} | {
        "embed.weight": weights["fc.weight"]
    }
    save_file(wrong | {"fc.weight": weights["fc.weight"][:, :32].contiguous()}, folder / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"no norm.weight; unknown embed.weight; fc.weight \[32, 32\] instead of \[32, 96\]"
    ):
        read_exported(folder)
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="damaged"):
        read_exported(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="no safetensors file"):
        read_exported(folder)


def test_a_folder_that_exists_and_a_run_that_does_not_are_refused(run: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give --out a new folder"):
        export(ExportOptions(run=run.folder, out=tmp_path))
    with pytest.raises(ValueError, match="no drafter"):
        export(ExportOptions(run=tmp_path / "none", out=tmp_path / "out"))
    with pytest.raises(ValueError, match="names its verifier"):
        export(ExportOptions(run=run.folder, out=tmp_path / "out", layout="speculators"))


@pytest.mark.slow
@pytest.mark.parity
@needs_speculators
def test_speculators_computes_the_logits_that_decoding_computes(tmp_path: Path, target: Path) -> None:
    """Features by speculators' own numbering, its mask, its heads: every convention of the layout at once."""
    from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig

    drafter = make_drafter()
    out = exported(
        write_run(tmp_path / "run", drafter),
        tmp_path / "out",
        layout="speculators",
        target=str(target),
        dtype="float32",
    )
    config = DFlashSpeculatorConfig.from_pretrained(str(out))
    config.transformer_layer_config._attn_implementation = "eager"
    theirs = DFlashDraftModel.from_pretrained(str(out), config=config).float().eval()
    theirs.load_verifier_weights()

    model = AutoModelForCausalLM.from_pretrained(target)
    ids, anchor = torch.randint(3, 38, (1, 20), generator=torch.Generator().manual_seed(2)), 11
    hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    loss_mask = torch.zeros(1, 20)
    loss_mask[0, anchor] = 1
    with torch.no_grad():
        _, logits, *_ = theirs._backbone_forward(
            hidden_states=torch.cat([hidden[layer] for layer in theirs.target_layer_ids], dim=-1),
            input_ids=ids,
            loss_mask=loss_mask,
            verifier_last_hidden_states=hidden[-2],
            document_ids=torch.zeros(1, 20, dtype=torch.long),
            max_anchors=1,
        )
    found = logits[0, 1:]

    ours = Target(model)
    cache = drafter.empty_cache()
    drafter.extend(cache, ours.extend(ours.open_cache(), ids[0, :anchor], drafter.config.target_layer_ids).features_NF)
    slots = torch.full((6,), drafter.config.mask_token_id)
    slots[0] = ids[0, anchor]
    with torch.no_grad():
        expected = ours.logits(drafter.draft(cache, ours.embed(slots)))[1:]
    assert torch.allclose(found, expected, atol=1e-4)
    assert torch.equal(read_ends(target)[1], ours.head_VH)


@pytest.mark.slow
@needs_vllm
@pytest.mark.parametrize("shape", [FULL, SLIDING])
def test_vllm_reads_layers_window_and_causality_as_they_were_meant(tmp_path: Path, target: Path, shape: dict) -> None:
    from vllm.model_executor.models.qwen3_dflash import _resolve_layer_attention
    from vllm.transformers_utils.configs.speculators.base import SpeculatorsConfig

    drafter = make_drafter(**shape)
    run = write_run(tmp_path / "run", drafter)
    zlab = Qwen3Config.from_pretrained(exported(run, tmp_path / "zlab"))
    out = exported(run, tmp_path / "speculators", layout="speculators", target=str(target))
    read = SpeculatorsConfig.extract_transformers_pre_trained_config(json.loads((out / "config.json").read_text()))
    speculators = Qwen3Config(**read)
    for config in (zlab, speculators):
        assert config.dflash_config["target_layer_ids"] == list(drafter.config.target_layer_ids)
        assert config.dflash_config["mask_token_id"] == drafter.config.mask_token_id
        for layer, kind in enumerate(drafter.config.layer_types):
            sliding = kind == "sliding_attention"
            assert _resolve_layer_attention(config, layer) == (8 if sliding else None, sliding)

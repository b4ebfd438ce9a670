"""Opening a drafter, whatever it comes as: a run of ours, one of its steps, or a folder in z-lab's or speculators' layout."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from training.checkpoint import load_drafter
from training.drafter import DFlashDrafter
from training.drafter_config import DrafterConfig
from training.speculators_layout import SPECULATORS_TYPE, config_from_speculators, weights_from_speculators

WEIGHTS = "model.safetensors"


def open_drafter(folder: Path, num_target_layers: int | None = None) -> DFlashDrafter:
    """Return the drafter in a run (its newest intact checkpoint), in a step_N, or in an exported or downloaded folder; float32
    on the CPU. `num_target_layers` helps a speculators folder that does not say it.

    Raises:
        ValueError: there is none, or it is of a kind that is not computed here; says what was found.
    """
    if (folder / "config.json").is_file():
        return read_exported(folder, num_target_layers)
    return load_drafter(folder).eval()


def read_exported(folder: Path, num_target_layers: int | None = None) -> DFlashDrafter:
    """Return the drafter in a folder in z-lab's or speculators' layout, float32 on the CPU.

    Raises:
        ValueError: the configuration or the weights are not those of a DFlash drafter; names the field or the tensor.
    """
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}/config.json cannot be read ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{folder}/config.json: expected an object, found {type(found).__name__}")
    weights = read_weights(folder)
    if SPECULATORS_TYPE in found:
        config, weights = config_from_speculators(found, num_target_layers), weights_from_speculators(weights)
    else:
        config = DrafterConfig.from_json(found)
    drafter = DFlashDrafter(config)
    _load(drafter, weights, folder)
    return drafter.eval()


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files by name.

    Raises:
        ValueError: there is no such file, or one is damaged.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{folder} holds no safetensors file; a drafter's folder holds config.json and {WEIGHTS}")
    weights: dict[str, Tensor] = {}
    for path in paths:
        try:
            weights |= load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is damaged ({error}); copy it again") from error
    return weights


def weights_sha256(drafter: DFlashDrafter) -> str:
    """Return a digest of a drafter's weights, whatever file they came from."""
    digest = hashlib.sha256()
    for name, weight in sorted(drafter.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def check_fits(drafter: DFlashDrafter, folder: Path, hidden_size: int, vocab_size: int, num_layers: int) -> None:
    """Raise ValueError unless a drafter's width, vocabulary and features are those of a target."""
    config = drafter.config
    wrong = [
        f"{name} {theirs}, the target {ours}"
        for name, theirs, ours in (
            ("hidden_size", config.hidden_size, hidden_size),
            ("vocab_size", config.vocab_size, vocab_size),
            ("num_target_layers", config.num_target_layers, num_layers),
        )
        if theirs != ours
    ]
    if wrong:
        raise ValueError(f"{folder} is no drafter of this target: it has {'; '.join(wrong)}; give its own as --target")


def _load(drafter: DFlashDrafter, weights: dict[str, Tensor], folder: Path) -> None:
    ours = drafter.state_dict()
    problems = [f"no {name}" for name in sorted(ours.keys() - weights.keys())]
    problems += [f"unknown {name}" for name in sorted(weights.keys() - ours.keys())]
    problems += [
        f"{name} {list(weights[name].shape)} instead of {list(ours[name].shape)}"
        for name in sorted(ours.keys() & weights.keys())
        if weights[name].shape != ours[name].shape
    ]
    if problems:
        more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
        raise ValueError(f"{folder}: not the weights that its config.json describes: {'; '.join(problems[:4])}{more}")
    drafter.load_state_dict({name: weight.to(torch.float32) for name, weight in weights.items()})

"""Embedding and lm_head of a target, read from its files without the layers between them."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

EMBEDDING = (
    "model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
)
"""Names that the token embedding has, by kind of model."""

HEAD = ("lm_head.weight", "language_model.lm_head.weight")
"""Names of the output head; a tied model has none and uses the embedding."""


def read_ends(folder: Path) -> tuple[Tensor, Tensor]:
    """Return the embedding [V, H] and the lm_head [V, H] of a model's folder, in the dtype of its files.

    Raises:
        ValueError: there are no safetensors files, or no embedding in them.
    """
    places = _places(folder)
    embedding = next((name for name in EMBEDDING if name in places), None)
    if embedding is None:
        raise ValueError(
            f"{folder} has no token embedding among its {len(places)} tensors (sought {', '.join(EMBEDDING)})"
        )
    head = next((name for name in HEAD if name in places), embedding)
    return _read(places[embedding], embedding), _read(places[head], head)


def _places(folder: Path) -> dict[str, Path]:
    """Return the file of every tensor."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return {name: folder / file for name, file in json.loads(index.read_text())["weight_map"].items()}
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ValueError(f"{folder} holds no safetensors files; give the target's own folder as --target")
    places: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, "pt") as file:
            places |= dict.fromkeys(file.keys(), path)
    return places


def _read(path: Path, name: str) -> Tensor:
    with safe_open(path, "pt") as file:
        return file.get_tensor(name)

"""What words mean, for the domain classifier: hidden states of a small language model, which `benchmarks.domains` learns from.

    python -m benchmarks.word_vectors MODEL LABELLED VECTORS.npz

MODEL is a Hugging Face folder (the shipped classifier: SmolLM2-135M-Instruct, Apache-2.0, which `make demo` writes). Words are those
of its vocabulary that begin with a space, and those that three or more rows of LABELLED use. Each is read after "A question
about"; its vector is the hidden state of its last token after LAYER decoder layers, standardised, of length one, on the WIDTH
directions in which words differ most. Takes some minutes on a CPU; the vectors themselves are not shipped.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.domains import MOST_ROWS
from curation.shingles import word_hashes_of

CARRIER = "A question about"
LAYER = 12
WIDTH = 192
BATCH = 256
SEEN_IN = 3
"""Labelled rows that must use a word which is no token by itself."""

SPACE = "\u0120"
"""How byte-level tokenizers write a leading space."""


def main() -> None:
    """Write the vectors."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("labelled", type=Path)
    parser.add_argument("vectors", type=Path)
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    words = words_of(tokenizer, given.labelled)
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16).eval()
    coordinates = principal(hidden_states(model, tokenizer, words))
    hashes, _ = word_hashes_of(words, mask_digits=True)
    order = np.argsort(hashes)
    np.savez_compressed(given.vectors, vocabulary=hashes[order], coordinates=coordinates[order])
    print(f"{len(words):,} words, {coordinates.shape[1]} directions, in {given.vectors}")


def words_of(tokenizer: Any, labelled: Path) -> list[str]:
    """Return the words that get a vector, each of which curation reads as one word."""
    tokens = {token[1:].lower() for token in tokenizer.get_vocab() if token.startswith(SPACE)}
    words = {token for token in tokens if re.fullmatch(r"[a-z\u00e0-\u00ff]{2,}", token)}
    seen: Counter[str] = Counter()
    for path in sorted(labelled.glob("*.jsonl")):
        for line in islice(path.open("rb"), MOST_ROWS):
            row = orjson.loads(line)
            said = [message["content"] for message in row["messages"] if isinstance(message["content"], str)]
            seen.update(set(re.findall(r"[a-z\u00e0-\u00ff]{3,}", " ".join([*said, row["completion"]]).lower())))
    words |= {word for word, rows in seen.items() if rows >= SEEN_IN}
    kept = sorted(words)
    _, starts = word_hashes_of(kept, mask_digits=True)
    return [word for word, count in zip(kept, np.diff(starts), strict=True) if count == 1]


@torch.no_grad()
def hidden_states(model: Any, tokenizer: Any, words: list[str]) -> np.ndarray:
    """Return float32 [num_words, hidden_size]."""
    carrier = tokenizer(CARRIER, add_special_tokens=False)["input_ids"]
    ids = [carrier + tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words]
    order = sorted(range(len(words)), key=lambda place: len(ids[place]))
    found = np.zeros((len(words), model.config.hidden_size), np.float32)
    for at in range(0, len(order), BATCH):
        places = order[at : at + BATCH]
        lengths = torch.tensor([len(ids[place]) for place in places])
        padded = torch.zeros(len(places), int(lengths.max()), dtype=torch.long)
        for row, place in enumerate(places):
            padded[row, : lengths[row]] = torch.tensor(ids[place])
        states = model.model(input_ids=padded, output_hidden_states=True).hidden_states[LAYER]
        found[places] = states[torch.arange(len(places)), lengths - 1].float().numpy()
    return found


def principal(states: np.ndarray) -> np.ndarray:
    """Return float32 [num_words, WIDTH]: standardised, of equal length, on their first principal directions, of mean square one."""
    states = (states - states.mean(axis=0)) / (states.std(axis=0) + 1e-6)
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    states -= states.mean(axis=0)
    left, sizes, _ = np.linalg.svd(states, full_matrices=False)
    projected = left[:, :WIDTH] * sizes[:WIDTH]
    return (projected / np.sqrt(np.square(projected).sum(axis=1).mean())).astype(np.float32)


if __name__ == "__main__":
    main()

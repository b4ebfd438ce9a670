"""How fast a build encodes text: the encoder it would choose, against the tokenizer's own batch encoding, in one run.

    python -m benchmarks.tokenize_speed --tokenizer models/SmolLM2-135M-Instruct [--texts completions_raw] [--quick]

Both encode the same texts in one process on one thread, alternately, and the ids must be equal. Without --tokenizer a
byte-level BPE is trained on the texts with the split pattern of Qwen and Llama 3, which the fast libraries know. The figure is a ratio
of CPU time, start-up left out. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sysconfig
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from curation.corpus import open_corpus
from curation.encoders import choose, encoder

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Split pattern of Qwen2 and later, from the tokenizer.json of those models."""

TEXT_CHARS = 3000
"""About the mean of a chat row."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", help="folder or hub id; without, one is trained on the texts")
    parser.add_argument(
        "--texts", type=Path, help="folder of completions; without, source files of the standard library"
    )
    parser.add_argument("--megabytes", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="3 MB, one round")
    arguments = parser.parse_args()
    size = 3e6 if arguments.quick else arguments.megabytes * 1e6
    texts = _completions(arguments.texts, size) if arguments.texts else _source_files(size)
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer) if arguments.tokenizer else _trained(texts)
    choice = choose(tokenizer, texts[:200])
    print(
        f"{len(texts):,} texts, {sum(map(len, texts)) / 1e6:.1f} M characters; chosen: {choice.name} {choice.passed_over}"
    )
    seconds: dict[str, list[float]] = {"huggingface": [], choice.name: []}
    ids: dict[str, list[np.ndarray]] = {}
    encoders = {name: encoder(name, tokenizer) for name in seconds}
    for _ in range(1 if arguments.quick else arguments.rounds):
        for name, encode in encoders.items():
            started = time.process_time()
            ids[name] = [one for at in range(0, len(texts), 1000) for one in encode(texts[at : at + 1000])]
            seconds[name].append(time.process_time() - started)
            print(f"{name}: {seconds[name][-1]:.2f} CPU-s", flush=True)
    equal = all(np.array_equal(a, b) for a, b in zip(ids["huggingface"], ids[choice.name], strict=True))
    print(json.dumps(_figures(choice.name, seconds, ids["huggingface"], texts, equal)))


def _figures(
    name: str, seconds: dict[str, list[float]], ids: list[np.ndarray], texts: list[str], equal: bool
) -> dict[str, Any]:
    # The first round: later ones find the texts' words in the encoders' caches.
    ours, theirs = seconds[name][0], seconds["huggingface"][0]
    megabytes = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
    return {
        "encoder": name,
        "tokens": int(sum(map(len, ids))),
        "ids_equal": equal,
        "speed_ours_over_huggingface": round(theirs / ours, 2),
        "speed_on_texts_seen_before": round(min(seconds["huggingface"]) / min(seconds[name]), 2),
        "mb_per_cpu_s_ours": round(megabytes / ours, 1),
        "mb_per_cpu_s_huggingface": round(megabytes / theirs, 1),
    }


def _completions(folder: Path, size: float) -> list[str]:
    corpus = open_corpus(folder)
    texts: list[str] = []
    for row in corpus.rows(range(corpus.facts.height)):
        texts.append("\n".join([*(message["content"] for message in row["messages"]), row["completion"]]))
        size -= len(texts[-1])
        if size <= 0:
            break
    return texts


def _source_files(size: float) -> list[str]:
    """Return pieces of the standard library's files, shuffled: code and English prose."""
    pieces: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        pieces += [text[at : at + TEXT_CHARS] for at in range(0, len(text), TEXT_CHARS)]
        if sum(map(len, pieces)) >= size:
            break
    random.Random(0).shuffle(pieces)
    return pieces


def _trained(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts[:700], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


if __name__ == "__main__":
    main()

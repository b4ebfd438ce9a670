"""Train the domain classifier and measure it on sources it has not seen.

    python -m benchmarks.domains LABELLED VECTORS            five folds over sources: accuracy, coverage, confusion matrix
    python -m benchmarks.domains LABELLED VECTORS --write    and train on every source that allows it, into curation/domains.npz

LABELLED is a folder of `<source>.jsonl` (see labelled_sources.py), VECTORS a file of word_vectors.py. A word's weights are its own
plus a linear function of its vector, which is learned with them and added up before the model is saved: a word that no
training source has used still gets the weights of words that mean alike. A fold holds out whole families of sources, so that no phrase
of a test source was learned. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.domain_phrases import WORDS
from curation import rows as row_format
from curation.classify import MARKS, TABLE_BITS, Model, load, marks_of, num_rows, save, word_features
from curation.domain_rules import answer_of, by_rule, question_of
from curation.facts import DOMAINS, OTHER, ReadingSettings

FIRST_SIX = ("code", "math", "science", "chat", "writing", "tool_use")
FAMILIES = (
    "mgsm",
    "gsm",
    "theoremqa",
    "mt_bench",
    "vicuna_bench",
    "sft_demo",
    "self_instruct",
    "alpaca_en",
    "do_not_answer",
    "bfcl",
    "demo",
    "gym",
    "med",
)
"""Sources whose names begin alike and share an origin are held out together (mgsm is gsm8k translated)."""

TEST_ROWS = 150
"""Most rows of one source in a test, so that no large source decides the figure."""

DOMAIN_WEIGHT = {"tool_use": 0.5, "reasoning": 0.4, "instruction_following": 0.4, "safety": 0.4}
"""How much a domain counts in training where it is not 1. Without its tools in the row, tool use looks like everything else."""

PRIOR_WEIGHT = 2.5
DECAY = 2e-5
EPOCHS = 5
BATCH = 1024
MOST_ROWS = 400
"""Rows of one source that are read; more of the same teach little."""

FEATURE_DROP = 0.35
NUM_FOLDS = 5
VECTOR_RATE = 0.02
VECTOR_DECAY = 1e-4
WORD_RATE = 0.03


@dataclass
class Labelled:
    """Rows as the model sees them."""

    source: list[str]
    label: np.ndarray
    rule: list[str | None]
    prompts: list[str]
    answers: list[str]
    trained: np.ndarray
    vectors: Vectors


@dataclass
class Vectors:
    """Words and what they mean."""

    vocabulary: np.ndarray
    """uint64 [num_words], sorted."""
    coordinates: np.ndarray
    """float32 [num_words, width]."""


def main() -> None:
    """Print the figures of the folds; with --write, train and save the model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("labelled", type=Path)
    parser.add_argument("vectors", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true", help="one fold")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    data = read(given.labelled, given.vectors)
    if given.write:
        model = train(data, np.flatnonzero(data.trained))
        save(Path(__file__).parent.parent / "curation" / "domains.npz", model)
    results = [part for fold in range(1 if given.quick else NUM_FOLDS) for part in test_fold(data, fold)]
    figures = report(results)
    print(json.dumps(figures))


def read(folder: Path, vectors: Path) -> Labelled:
    """Return every labelled row of a folder."""
    stored = np.load(vectors, allow_pickle=False)
    known = Vectors(stored["vocabulary"], stored["coordinates"])
    found = Labelled([], np.empty(0), [], [], [], np.empty(0), known)
    labels, trained = [], []
    for path in sorted(folder.glob("*.jsonl")):
        for line in islice(path.open("rb"), MOST_ROWS):
            value = orjson.loads(line)
            row = {"tools": None, "tool_calls": None, **value}
            prompt = row_format.prompt_text(row)
            guess = by_rule(row, prompt)
            found.source.append(path.stem)
            found.rule.append(guess[0] if guess else None)
            found.prompts.append(question_of(prompt))
            found.answers.append(answer_of(value["completion"]))
            labels.append(DOMAINS.index(value["domain"]))
            trained.append(not value["evaluation_only"])
    found.label, found.trained = np.array(labels), np.array(trained)
    return found


def family(source: str) -> str:
    """Return the name that sources of one origin share."""
    name = next((name for name in FAMILIES if source.startswith(name)), source)
    return "gsm" if name == "mgsm" else name


def test_fold(data: Labelled, fold: int) -> list[tuple[str, str, str, float, str | None]]:
    """Train without the families of a fold; return (source, label, prediction, confidence, rule) of their rows."""
    families = sorted({family(source) for source in data.source if not source.startswith("templates")})
    random.Random(5).shuffle(families)
    held = set(families[fold::NUM_FOLDS])
    outside = np.array([family(source) not in held for source in data.source])
    model = as_shipped(train(data, np.flatnonzero(outside & data.trained)))
    counts: Counter[str] = Counter()
    chosen = []
    order = list(np.flatnonzero(~outside))
    random.Random(fold).shuffle(order)
    for row in order:
        counts[data.source[row]] += 1
        if counts[data.source[row]] <= TEST_ROWS:
            chosen.append(row)
    chances = model.probabilities([data.prompts[row] for row in chosen], [data.answers[row] for row in chosen])
    return [
        (
            data.source[row],
            DOMAINS[data.label[row]],
            data.rule[row] or DOMAINS[int(chance.argmax())],
            1.0 if data.rule[row] else float(chance.max()),
            data.rule[row],
        )
        for row, chance in zip(chosen, chances, strict=True)
    ]


def as_shipped(model: Model) -> Model:
    """Return a model with the precision of its file."""
    file = io.BytesIO()
    save(file, model)
    file.seek(0)
    return load(file)


def train(data: Labelled, chosen: np.ndarray) -> Model:
    """Return the linear model trained on some rows, each also without its answer half of the time."""
    draw = np.random.RandomState(0)
    chosen = np.concatenate([chosen, chosen])
    bare = np.arange(len(chosen)) >= len(chosen) // 2
    prompts = [data.prompts[row] for row in chosen]
    answers = ["" if without else data.answers[row] for row, without in zip(chosen, bare, strict=True)]
    vocabulary = data.vectors.vocabulary
    zero, first_known = num_rows(vocabulary) - 1, 2 << TABLE_BITS
    indices, starts = word_features(prompts, answers, vocabulary)
    marks = torch.tensor(marks_of(prompts, answers))
    labels = torch.tensor(data.label[chosen])
    weights = torch.tensor(row_weights([data.source[row] for row in chosen], data.label[chosen]), dtype=torch.float32)
    prior = torch.tensor(prior_weights(vocabulary))
    words = torch.nn.EmbeddingBag.from_pretrained(prior.clone(), freeze=False, mode="sum")
    # Coordinates of what is hashed are 0: a row for every word of the vocabulary, and one for the rest.
    coordinates = torch.tensor(np.concatenate([data.vectors.coordinates, np.zeros_like(data.vectors.coordinates[:1])]))
    meaning = torch.nn.Parameter(torch.zeros(2, coordinates.shape[1], len(DOMAINS)))
    scores = torch.nn.Linear(len(MARKS), len(DOMAINS))
    torch.nn.init.zeros_(scores.weight)
    torch.nn.init.zeros_(scores.bias)
    steps = EPOCHS * (len(chosen) // BATCH + 1)
    optimizer = torch.optim.Adam(
        [
            {"params": words.parameters(), "lr": WORD_RATE},
            {"params": scores.parameters(), "lr": 0.04},
            {"params": [meaning], "lr": VECTOR_RATE},
        ]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / (steps + 1))
    lengths = np.diff(starts)
    scale = torch.tensor(1 / np.sqrt(np.maximum(lengths, 1)), dtype=torch.float32)[:, None]
    for _ in range(EPOCHS):
        order = draw.permutation(len(chosen))
        for batch in np.array_split(order, len(order) // BATCH + 1):
            segments = np.stack([2 * batch, 2 * batch + 1], axis=1).ravel()
            picked = np.concatenate([indices[starts[s] : starts[s + 1]] for s in segments])
            offsets = torch.tensor(np.concatenate([[0], np.cumsum(lengths[segments])[:-1]]))
            known = (picked >= first_known) & (picked < zero)
            place = torch.tensor(np.where(known, (picked - first_known) % max(len(vocabulary), 1), len(vocabulary)))
            kept = torch.tensor(np.where(draw.random_sample(len(picked)) < FEATURE_DROP, zero, picked))
            sums = words(kept, offsets) * scale[segments]
            means = torch.nn.functional.embedding_bag(place, coordinates, offsets, mode="sum") * scale[segments]
            logits = (
                sums[0::2] + sums[1::2] + means[0::2] @ meaning[0] + means[1::2] @ meaning[1] + scores(marks[batch])
            )
            loss = (
                torch.nn.functional.cross_entropy(logits, labels[batch], reduction="none", label_smoothing=0.05)
                * weights[batch]
            ).mean() + VECTOR_DECAY * meaning.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                words.weight.lerp_(prior, DECAY * BATCH)
                words.weight[zero] = 0
    with torch.no_grad():
        words.weight[first_known:zero] += (coordinates[:-1] @ meaning).flatten(0, 1)
    return Model(
        DOMAINS,
        vocabulary,
        words.weight.detach().numpy(),
        scores.weight.detach().numpy().T.copy(),
        scores.bias.detach().numpy(),
    )


def row_weights(sources: list[str], labels: np.ndarray) -> np.ndarray:
    """Weigh rows so that domains count alike, and sources within a domain by the root of their size."""
    sizes = Counter(sources)
    weights = np.array([1 / np.sqrt(sizes[source]) for source in sources])
    for label in range(len(DOMAINS)):
        mine = labels == label
        if mine.any():
            weights[mine] *= len(labels) / len(DOMAINS) / weights[mine].sum() * DOMAIN_WEIGHT.get(DOMAINS[label], 1.0)
    return weights


def prior_weights(vocabulary: np.ndarray) -> np.ndarray:
    """Return word weights that say only what `WORDS` says, float32 [num_rows, num_domains]."""
    weights = np.zeros((num_rows(vocabulary), len(DOMAINS)), dtype=np.float32)
    for domain, text in WORDS.items():
        for word in text.split():
            for prompt, answer, strength in ((word, "", 1.0), ("", word, 0.6)):
                indices, starts = word_features([prompt], [answer], vocabulary)
                if len(indices):
                    weights[indices[0], DOMAINS.index(domain)] = PRIOR_WEIGHT * strength
    return weights


def report(results: list[tuple[str, str, str, float, str | None]]) -> dict[str, Any]:
    """Print accuracy by source and the confusion matrix; return the figures."""
    by_source: dict[str, list[bool]] = defaultdict(list)
    for source, label, predicted, _, _ in results:
        by_source[source].append(label == predicted)
    for source, right in sorted(by_source.items()):
        missed = Counter(p for s, label, p, _, _ in results if s == source and p != label).most_common(3)
        print(f"  {source:24s} {np.mean(right):6.3f}  n={len(right):4d}  {dict(missed)}")
    six = [result for result in results if result[1] in FIRST_SIX]
    threshold = ReadingSettings().abstain_below
    sure = [result for result in six if result[3] >= threshold]
    said_code = [result for result in six if result[2] == "code" and result[3] >= threshold]
    is_code = [result for result in results if result[1] == "code"]
    print_confusion(results, threshold)
    return {
        "num_rows": len(six),
        "accuracy": float(np.mean([label == predicted for _, label, predicted, _, _ in six])),
        "accuracy_where_sure": float(np.mean([label == predicted for _, label, predicted, _, _ in sure])),
        "coverage": len(sure) / len(six),
        "code_precision": float(np.mean([label == "code" for _, label, _, _, _ in said_code])),
        "code_recall": float(np.mean([predicted == "code" for _, _, predicted, _, _ in is_code])),
        "code_precision_with_harmful_requests": float(
            np.mean([r[1] == "code" for r in results if r[2] == "code" and r[3] >= threshold])
        ),
        "rule_precision": float(np.mean([label == predicted for _, label, predicted, _, rule in results if rule])),
        "curve": {f"{at:.2f}": curve_point(six, at) for at in (0.3, 0.4, 0.5, 0.6, 0.7)},
    }


def curve_point(results: list[Any], threshold: float) -> list[float]:
    """Return [coverage, accuracy] at a confidence threshold."""
    sure = [result for result in results if result[3] >= threshold]
    return [round(len(sure) / len(results), 4), round(float(np.mean([r[1] == r[2] for r in sure])), 4)]


def print_confusion(results: list[tuple[str, str, str, float, str | None]], threshold: float) -> None:
    """Print labels by row and predictions by column, abstentions as `other`."""
    columns = (*DOMAINS, OTHER)
    print("| label | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for domain in DOMAINS:
        mine = [
            OTHER if confidence < threshold else predicted
            for _, label, predicted, confidence, _ in results
            if label == domain
        ]
        print(f"| {domain} | " + " | ".join(str(mine.count(column)) for column in columns) + " |")


if __name__ == "__main__":
    main()

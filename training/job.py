"""A training job: what is trained on what, checked before anything large is loaded, and the card that its folder carries."""

from __future__ import annotations

import hashlib
import json
import math
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from curation.arrow_sets import HELDOUT, SET_CARD, list_arrow_shards, read_set_card
from training.batches import RowStore
from training.drafter_config import DrafterConfig, TargetFacts, configure
from training.durable import write_json
from training.order import DataOrder
from training.recipe import Recipe, differences
from training.target import choose_mask_token, read_target_facts

RUN_CARD = "run.json"
"""Written when a run begins: the resolved recipe, what went in, and the versions of what runs it."""

DONE = "done.json"
"""Written last: the run is complete."""

WEIGHT_FILES = ["*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx"]
"""Files of a model's repository that planning does without."""

MAY_CHANGE = (
    "checkpoints.",
    "heldout.",
    "logging.",
    "placement.",
    "guard.",
    "compute.",
    "batches.prefetch",
    "max_minutes",
)
"""Parts of a recipe that a resumed run may change: they decide how and where it runs, not what it learns."""


@dataclass(frozen=True)
class Job:
    """What the command line asks for."""

    data: Path
    """Folder of a complete set."""
    out: Path
    """Folder of the run."""
    recipe: Recipe
    target: str | None = None
    """Folder or hub id of the target; None: the one that the set names."""
    init_from: Path | None = None
    """Drafter to start from: a run, a step_N, or a folder in z-lab's layout."""
    resume: bool = False
    """Require that there is something to go on from."""
    trust_remote_code: bool = False
    """Run code that the target's repository carries."""


@dataclass(frozen=True)
class Prepared:
    """A job whose parts fit together."""

    job: Job
    model: str
    """The target as it was named: a folder or a hub id."""
    revision: str | None
    target: str
    """Folder of the target's configuration and tokenizer; of a hub id, its weights are fetched when they are loaded."""
    facts: TargetFacts
    config: DrafterConfig
    store: RowStore
    heldout: RowStore | None
    order: DataOrder
    total_steps: int
    card: dict[str, Any]
    """Content of run.json."""


def prepare(job: Job) -> Prepared:
    """Read the set and the target's configuration, and check that they and the recipe fit.

    Raises:
        ValueError: one line that says what does not fit and what to do.
    """
    set_card = read_set_card(job.data)
    recipe = job.recipe
    named = set_card.get("target") or {}
    model, revision = (job.target, None) if job.target else (named.get("model"), named.get("revision"))
    target = locate_target(model, revision, weights=False)
    _check_tokenizer(set_card, target)
    facts = read_target_facts(target, job.trust_remote_code)
    store = RowStore(job.data, recipe.batches.max_length)
    if (largest := store.largest_token_id()) >= facts.vocab_size:
        raise ValueError(
            f"{job.data} holds token id {largest}, the target {target} has a vocabulary of {facts.vocab_size}: "
            "the set was made for another target; give its folder as --target"
        )
    config = configure(recipe.drafter, facts, _mask_token(job, target, facts))
    heldout = job.data / HELDOUT
    has_heldout = recipe.heldout.rows > 0 and bool(list_arrow_shards(heldout))
    order = DataOrder(
        store.lengths,
        tokens=recipe.batches.tokens,
        num_buckets=recipe.batches.buckets,
        seed=recipe.seed,
        hidden_size=facts.hidden_size,
    )
    steps = max(1, math.ceil(recipe.epochs * order.batches_per_epoch / recipe.batches.per_step))
    total_steps = min(steps, recipe.max_steps or steps)
    return Prepared(
        job=job,
        model=str(model),
        revision=revision,
        target=target,
        facts=facts,
        config=config,
        store=store,
        heldout=RowStore(heldout, recipe.batches.max_length) if has_heldout else None,
        order=order,
        total_steps=total_steps,
        card=_run_card(job, target, config, store, order, total_steps),
    )


def check_same_run(prepared: Prepared) -> None:
    """Check that a run which is already in the job's folder is this one.

    Raises:
        ValueError: it was made with another set, tokenizer, target or recipe; names the difference.
    """
    path = prepared.job.out / RUN_CARD
    if not path.is_file():
        return
    before = json.loads(path.read_text())
    for name, remedy in (
        ("set_sha256", "the set has changed"),
        ("tokenizer_sha256", "the target's tokenizer has changed"),
        ("drafter_config", "the drafter would be another"),
    ):
        if before[name] != prepared.card[name]:
            raise ValueError(
                f"{prepared.job.out} holds a run that differs: {remedy} ({name}); give --out for a new run"
            )
    changed = [
        line for line in differences(before["recipe"], prepared.card["recipe"]) if not line.startswith(MAY_CHANGE)
    ]
    if changed:
        raise ValueError(
            f"{prepared.job.out} holds a run with another recipe ({'; '.join(changed[:3])}); give --out for a new run"
        )


def write_run_card(prepared: Prepared) -> None:
    """Write run.json."""
    write_json(prepared.job.out / RUN_CARD, prepared.card)


def write_done(run: Path, steps: int, elapsed_s: float) -> None:
    """Write done.json, last of all: its presence means that the run is complete."""
    write_json(run / DONE, {"steps": steps, "elapsed_s": elapsed_s})


def locate_target(model: str | None, revision: str | None, weights: bool = True) -> str:
    """Return the folder of a target: as given, or its snapshot from the hub at `revision`, with or without its weights.

    Raises:
        ValueError: no model is named, or there is neither such a folder nor such a repository within reach.
    """
    if model is None:
        raise ValueError(f"{SET_CARD} names no target; give its folder or hub id as --target")
    if (Path(model) / "config.json").is_file():
        return model
    if Path(model).is_dir():
        raise ValueError(f"{model} holds no config.json: not a model's folder; give the right one as --target")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return snapshot_download(model, revision=revision, ignore_patterns=None if weights else WEIGHT_FILES)
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"target {model!r} is neither a folder here nor to be had from the hub ({reason}); give its folder as --target"
        ) from error


def _check_tokenizer(set_card: dict[str, Any], target: str) -> None:
    """Refuse a target whose tokenizer is not the one that the set was made with, where both are known."""
    digests = (set_card.get("tokenizer") or {}).get("tokenizer_sha256")
    made_with = digests.get("tokenizer.json") if isinstance(digests, dict) else None
    if made_with and (ours := tokenizer_sha256(target)) and ours != made_with:
        raise ValueError(
            f"the set was made with another tokenizer.json ({made_with[:12]}) than that of {target} ({ours[:12]}); "
            "give the target that answered as --target, or build the set again"
        )


def _mask_token(job: Job, target: str, facts: TargetFacts) -> int:
    if job.recipe.drafter.mask_token_id is not None:
        return job.recipe.drafter.mask_token_id
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(target, trust_remote_code=job.trust_remote_code)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{target} holds no tokenizer to choose a mask token from; set drafter.mask_token_id"
        ) from error
    return choose_mask_token(tokenizer, facts.vocab_size)


def _run_card(
    job: Job, target: str, config: DrafterConfig, store: RowStore, order: DataOrder, total_steps: int
) -> dict[str, Any]:
    packages = ("draftmill", "torch", "transformers", "numpy", "pyarrow")
    return {
        "data": str(job.data),
        "set_sha256": hashlib.sha256((job.data / SET_CARD).read_bytes()).hexdigest(),
        "target": target,
        "tokenizer_sha256": tokenizer_sha256(target),
        "init_from": None if job.init_from is None else str(job.init_from),
        "recipe": job.recipe.model_dump(mode="json"),
        "drafter_config": config.to_json(),
        "total_steps": total_steps,
        "rows": dict(store.counts),
        "domains": store.domains,
        "buckets": [
            {"rows": len(rows), "batches": int(batches), "shortest": shortest, "longest": longest}
            for rows, batches, (shortest, longest) in zip(
                order.bucket_rows, order.batches_per_bucket, order.bucket_lengths, strict=True
            )
        ],
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in packages},
    }


def tokenizer_sha256(target: str) -> str | None:
    """Return the digest of a target's tokenizer file, None where it has none."""
    path = Path(target) / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

"""What every question to a drafter has in common: which prompts the target answers, under which conditions.

Tau is no property of a drafter alone. Prompts, thinking, temperature, length, precision and the way of averaging move it by
tenths to whole tokens, so a report carries all of them. Light to import; torch and the models are loaded by `prepare`.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from training.decode import Limits
    from training.prompts import Chat, Prompt
    from training.target import Target

POOLING = (
    "tau is pooled over rounds, the bonus token included; tau_per_prompt is the mean of each prompt's tau; "
    "intervals are 95% bootstrap intervals by prompt"
)
"""How the figures of a report are averaged."""


class AskingOptions(BaseModel):
    """Which prompts are answered, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    data: Path | None = None
    """The set whose held-out prompts are decoded. Files given as --prompts take its place."""
    prompts: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = ()
    """Files of prompts: MT-bench, Spec-Bench, HumanEval, MBPP, GSM8K, BFCL and similar layouts, or any JSONL with a prompt."""
    turns: Literal["first", "all"] = "first"
    """Of chats with several turns: the first, or every one on the target's own answers."""
    thinking: Literal["default", "on", "off"] = "default"
    """Passed to the chat template of --prompts as enable_thinking; `default` leaves it to the template and the set."""
    target: str | None = None
    """Folder or hub id of the target; None takes the one that the set names."""
    max_prompts_per_domain: int = Field(default=4, ge=1)
    """Most prompts of a domain, drawn by seed."""
    max_new_tokens: int = Field(default=64, ge=1)
    """Longest completion in tokens."""
    temperature: float = Field(default=0.0, ge=0.0)
    """0 decodes greedily, and the texts must be the same."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of target and drafter. Only float32 makes equal texts a fair demand."""
    seed: int = 0
    """Seeds the choice of prompts, sampling, and the untrained drafter."""
    out: Path | None = None
    """The report, a .json; the page goes beside it. None writes them into the run."""
    trust_remote_code: bool = False
    """Run code that the target's repository carries."""


@dataclass(frozen=True)
class Asked:
    """What `prepare` found."""

    target: Target
    folder: str
    """Of the target."""
    chat: Chat
    prompts: list[Prompt]
    limits: Limits
    conditions: dict[str, Any]


def prepare(options: AskingOptions) -> Asked:
    """Load the target and render the prompts.

    Raises:
        ValueError: neither set nor prompts, or one of them or the target is not there.
    """
    import torch

    from training.target import Target

    folder, named = locate(options)
    chat = open_chat(options, folder, named)
    prompts = find_prompts(options, chat)
    limits = find_limits(options, folder)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    target = Target.load(folder, getattr(torch, options.dtype), device, options.trust_remote_code)
    conditions = describe(options, folder, named, chat, prompts) | {
        "end_token_ids": sorted(limits.end_token_ids),
        "dtype": options.dtype,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in ("draftmill", "torch", "transformers")},
    }
    return Asked(target, folder, chat, prompts, limits, conditions)


def prepare_prompts(options: AskingOptions) -> tuple[list[Prompt], Limits, dict[str, Any]]:
    """Render the prompts without loading the target, whose folder serves for its tokenizer only; return them with limits and
    conditions."""
    folder, named = locate(options)
    chat = open_chat(options, folder, named)
    prompts = find_prompts(options, chat)
    return prompts, find_limits(options, folder), describe(options, folder, named, chat, prompts)


def find_limits(options: AskingOptions, folder: str) -> Limits:
    """Return when texts end: at the options' length, or at the tokens that the target's generation config names."""
    from transformers import GenerationConfig

    from training.decode import Limits

    return Limits(options.max_new_tokens, _end_tokens(GenerationConfig, folder), options.temperature)


def locate(options: AskingOptions) -> tuple[str, dict[str, Any]]:
    """Return the target's folder, and what the set says about its target."""
    from curation.arrow_sets import read_set_card
    from training.job import locate_target

    if options.data is None and not options.prompts:
        raise ValueError("nothing to ask: give --data, a set with held-out rows, or --prompts, a file of prompts")
    if options.data is None and options.target is None:
        raise ValueError("--prompts without --data: give the target's folder or hub id as --target")
    named = (read_set_card(options.data).get("target") or {}) if options.data is not None else {}
    return locate_target(options.target or named.get("model"), None if options.target else named.get("revision")), named


def open_chat(options: AskingOptions, folder: str, named: dict[str, Any]) -> Chat:
    """Return the target's tokenizer and what its template is told. Held-out rows are rendered already and need neither."""
    from transformers import AutoTokenizer

    from training.prompts import Chat

    kwargs = dict(named.get("chat_template_kwargs") or {})
    if options.thinking != "default":
        kwargs["enable_thinking"] = options.thinking == "on"
    if not options.prompts:
        return Chat(None, kwargs)
    try:
        return Chat(AutoTokenizer.from_pretrained(folder, trust_remote_code=options.trust_remote_code), kwargs)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no tokenizer, which --prompts needs") from error


def find_prompts(options: AskingOptions, chat: Chat) -> list[Prompt]:
    """Return the prompts of all files, or of the set's held-out rows, at most so many a domain."""
    from training.prompts import draw_per_domain, file_prompts, heldout_prompts

    if options.prompts:
        found = [prompt for path in options.prompts for prompt in file_prompts(path, chat)]
        twice = next((name for name, count in Counter(prompt.id for prompt in found).items() if count > 1), None)
        if twice is not None:
            raise ValueError(f"two files hold a prompt {twice}; give files of different names")
        return draw_per_domain(found, options.max_prompts_per_domain, options.seed)
    if options.thinking != "default":
        raise ValueError("--thinking renders --prompts; the held-out prompts of a set are rendered already")
    assert options.data is not None
    return heldout_prompts(options.data, options.max_prompts_per_domain, options.seed)


def describe(
    options: AskingOptions, folder: str, named: dict[str, Any], chat: Chat, prompts: list[Prompt]
) -> dict[str, Any]:
    """Return the conditions that a report carries, as far as they follow from options and prompts."""
    from curation.arrow_sets import SET_CARD

    files = {str(path): _sha256(path) for path in options.prompts}
    if not files:
        assert options.data is not None
        files = {str(options.data / SET_CARD): _sha256(options.data / SET_CARD)}
    ids = json.dumps([[prompt.id, prompt.token_ids] for prompt in prompts])
    return {
        "target": folder,
        "target_revision": None if options.target else named.get("revision"),
        "prompts": "files" if options.prompts else "held-out rows of the set",
        "prompt_files_sha256": files,
        "prompts_sha256": hashlib.sha256(ids.encode()).hexdigest(),
        "num_prompts": len(prompts),
        "wording": "the text of the file as one user turn" if options.prompts else "as the set renders it",
        "chat_template_kwargs": chat.template_kwargs,
        "turns": options.turns,
        "temperature": options.temperature,
        "max_new_tokens": options.max_new_tokens,
        "max_prompts_per_domain": options.max_prompts_per_domain,
        "seed": options.seed,
        "pooling": POOLING,
    }


def say_conditions(conditions: dict[str, Any]) -> str:
    """Say the conditions that move tau, on one line."""
    thinking = conditions["chat_template_kwargs"].get("enable_thinking")
    said = [
        f"{conditions['num_prompts']} prompts ({conditions['prompts']}, {conditions['turns']} turns)",
        f"temperature {conditions['temperature']:g}",
        f"at most {conditions['max_new_tokens']} new tokens",
        "thinking " + ("as the template has it" if thinking is None else "on" if thinking else "off"),
    ]
    return ", ".join(said + [conditions[name] for name in ("dtype", "device") if name in conditions])


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"cannot read prompts from {path}: {error.strerror}") from error


def _end_tokens(generation_config: Any, folder: str) -> frozenset[int]:
    """Return the tokens that end a text, as the target's generation config has them, else its config."""
    if (Path(folder) / "generation_config.json").is_file():
        ids = generation_config.from_pretrained(folder).eos_token_id
    else:
        ids = json.loads((Path(folder) / "config.json").read_text()).get("eos_token_id")
    return frozenset() if ids is None else frozenset([ids] if isinstance(ids, int) else ids)

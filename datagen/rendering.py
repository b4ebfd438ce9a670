"""Prompts become token ids here, through the target's own tokenizer and chat template, and nowhere else.

Engines receive token ids and never text, so what was recorded is what the target saw: no second tokenisation, no doubled
beginning-of-sequence token, no template that a server chose. The tokenizer is the one that `transformers` picks for the
model, which is also what vLLM and SGLang use; it brings torch with it, so it is imported when a renderer is made.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from manifests.schema import Target

if TYPE_CHECKING:
    from datagen.plan import PlannedPrompt

_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length")
_UNSET_MAX_LENGTH = 10**9
"""`transformers` writes 1e30 where a tokenizer states no length; no real context is near a thousand million."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[\w.\-]+")
_NO_OWNERS = ("models", "datasets", "spaces")
"""First parts of the hub's own addresses, so nobody's name there: `models/x` is a folder."""

_OPEN, _CLOSE = "<think>", "</think>"
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


class Renderer:
    """The target's tokenizer and chat template."""

    def __init__(self, target: Target, manifest_folder: Path | None = None) -> None:
        """Load the tokenizer; no weights are read.

        Raises:
            ValueError: no such model, no tokenizer, no chat template, or code of the repository would have to run.
        """
        self.target = target
        self.model = resolve_target(target.model, manifest_folder)
        self.tokenizer = _load_tokenizer(self.model, target)
        self.chat_template = self._find_template(manifest_folder)
        self.context_length = target.max_model_len or self._model_context()
        self._thinks = (
            any(mark in self.chat_template for mark in (_OPEN, _CLOSE)) or _CLOSE in self.tokenizer.get_vocab()
        )

    def render(
        self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None, thinking: bool | None = None
    ) -> list[int]:
        """Return the prompt as token ids, the start of the assistant's turn included.

        Args:
            messages: OpenAI messages.
            tools: tool definitions for the template.
            thinking: passed to the template as `enable_thinking` (and `thinking`); None leaves both to `chat_template_kwargs`.

        Raises:
            ValueError: the template refuses these messages; says what the template said.
        """
        import jinja2  # what the template engine raises; transformers has loaded it already

        try:
            text = self.tokenizer.apply_chat_template(
                _for_template(messages),
                tools=tools,
                chat_template=self.chat_template,
                add_generation_prompt=True,
                tokenize=False,
                **self._template_kwargs(thinking),
            )
        except (jinja2.TemplateError, TypeError, KeyError) as error:
            raise ValueError(f"the chat template of {self.model} refuses this prompt: {error}") from error
        # The template writes the special tokens itself; asking the tokenizer for them too would double the first one.
        return self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]

    def split_reasoning(self, text: str, prompt_token_ids: list[int] | None = None) -> tuple[str | None, str]:
        """Return (reasoning, completion) of a generation whose template thinks in `<think>` ... `</think>`.

        A generation cut before `</think>` is all reasoning and its completion is empty. Without thinking in the
        template, the vocabulary or this answer, reasoning is None and the text is the completion.

        Args:
            text: the generation, decoded.
            prompt_token_ids: what it answers; tells whether the prompt itself opened the thinking part.
        """
        if not self._thinks:
            return None, text
        before, close, after = text.partition(_CLOSE)
        if close:
            return before.strip().removeprefix(_OPEN).strip() or None, after.lstrip("\n")
        opened = text.lstrip().startswith(_OPEN) or (
            prompt_token_ids is not None and self.opens_thinking(prompt_token_ids)
        )
        return (before.strip().removeprefix(_OPEN).strip() or None, "") if opened else (None, text)

    def opens_thinking(self, prompt_token_ids: list[int]) -> bool:
        """Return whether a prompt ends inside an open thinking part, as templates with thinking on may leave it."""
        return self._thinks and self.tokenizer.decode(prompt_token_ids[-8:]).rstrip().endswith(_OPEN)

    def describe(self) -> dict[str, Any]:
        """Return model, revision, the commit that it is on the hub, context length and SHA-256 digests of tokenizer files and chat template, for `run.json`."""
        return {
            "model": self.model,
            "revision": self.target.revision,
            "commit": _commit(self.model, self.target.revision),
            "context_length": self.context_length,
            "chat_template_sha256": hashlib.sha256(self.chat_template.encode()).hexdigest(),
            "tokenizer_class": type(self.tokenizer).__name__,
            "tokenizer_sha256": self._tokenizer_digests(),
        }

    def _template_kwargs(self, thinking: bool | None) -> dict[str, Any]:
        switches = {} if thinking is None else {"enable_thinking": thinking, "thinking": thinking}
        return {**self.target.chat_template_kwargs, **switches}

    def _find_template(self, manifest_folder: Path | None) -> str:
        if self.target.chat_template is not None:
            return _find_path(self.target.chat_template, manifest_folder, "chat template").read_text(encoding="utf-8")
        try:
            return self.tokenizer.get_chat_template()
        except ValueError as error:
            raise ValueError(
                f"{self.model} has no chat template, or several without a default; name a Jinja file in `target.chat_template`"
            ) from error

    def _model_context(self) -> int:
        found = _context_of(_read_model_file(self.model, self.target.revision, "config.json"))
        from_tokenizer = self.tokenizer.model_max_length
        if found is None and from_tokenizer < _UNSET_MAX_LENGTH:
            found = int(from_tokenizer)
        if found is None:
            raise ValueError(f"{self.model} states no context length; give `target.max_model_len`")
        return found

    def _tokenizer_digests(self) -> dict[str, str]:
        digests = {}
        for name in _TOKENIZER_FILES:
            content = _read_model_file(self.model, self.target.revision, name)
            if content is not None:
                digests[name] = hashlib.sha256(content).hexdigest()
        return digests


def resolve_target(model: str, manifest_folder: Path | None = None) -> str:
    """Return what engines should load: the absolute path of a model folder, or the hub id as it is.

    A folder is sought in the working directory, then in the manifest's folder.

    Raises:
        ValueError: the name can only be a folder (it is no `owner/name`), and there is none.
    """
    for place in (Path(model).expanduser(), (manifest_folder or Path()) / model):
        if place.is_dir():
            return str(place.resolve())
    if _HUB_ID.fullmatch(model) and model.partition("/")[0] not in _NO_OWNERS:
        return model
    raise ValueError(
        f"target model {model!r}: no such folder here or beside the manifest, and not a hub id (owner/name); "
        "make it, or name the folder that holds config.json and tokenizer.json in `target.model`"
    )


def conversation(planned: PlannedPrompt, answers: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the whole prompt of a planned row as OpenAI messages: its parent's prompt, the parent's answer, its own turns.

    Reasoning is left out of history, as chat templates do.

    Args:
        planned: the row to ask.
        answers: finished rows (as in `completions_raw/`) by id; only the parent is looked up, and only its `messages`
            (its own whole prompt), `completion` and `tool_calls` are used.

    Raises:
        KeyError: the parent has no answer yet.
    """
    if planned.parent is None:
        return planned.messages
    parent = answers[planned.parent]
    return [*parent["messages"], assistant_message(parent), *planned.messages]


def assistant_message(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a finished row's answer as a message for the history of the next turn."""
    message = {"role": "assistant", "content": answer["completion"]}
    if answer.get("tool_calls"):
        message["tool_calls"] = answer["tool_calls"]
    return message


def _for_template(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as chat templates expect them: the arguments of tool calls are objects there, text in the OpenAI form."""
    return [
        {**message, "tool_calls": [_with_object_arguments(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _with_object_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:  # the model that wrote the call made a mistake; the template prints it as it is
        return call
    return {**call, "function": {**function, "arguments": parsed}}


def _load_tokenizer(model: str, target: Target) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(
            model, revision=target.revision, trust_remote_code=target.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        said = " ".join(str(error).split())
        hint = "; set `target.trust_remote_code: true` if you trust its authors" if "trust_remote_code" in said else ""
        raise ValueError(f"cannot load the tokenizer of {model}: {said[:300]}{hint}") from error


def _read_model_file(model: str, revision: str | None, name: str) -> bytes | None:
    """Return a file of the model's folder or hub repository, or None where it has none."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path.read_bytes() if path.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name, revision=revision)).read_bytes()
    except (EntryNotFoundError, LocalEntryNotFoundError):
        return None


def _commit(model: str, revision: str | None) -> str | None:
    """Return the commit of a hub model that was loaded; None for a folder."""
    if Path(model).is_dir():
        return None
    from huggingface_hub import hf_hub_download

    # The cache keeps a commit's files in `snapshots/COMMIT/`, whatever branch or tag was asked for.
    return Path(hf_hub_download(model, "config.json", revision=revision)).parent.name


def _context_of(config: bytes | None) -> int | None:
    """Return the context length that a `config.json` states, its text part first where it has several."""
    if config is None:
        return None
    document = orjson.loads(config)
    for part in (document.get("text_config") or {}, document):
        for field in _CONTEXT_FIELDS:
            if isinstance(part.get(field), int):
                return part[field]
    return None


def _find_path(name: str, manifest_folder: Path | None, what: str) -> Path:
    for place in (Path(name), (manifest_folder or Path()) / name):
        if place.is_file():
            return place
    raise ValueError(f"no {what} file {name!r} here or beside the manifest")

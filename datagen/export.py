"""`datagen export`: completions in the forms that other tools read. One row of a shard is one line of the export.

A conversation whose turns were all regenerated gives one line per turn, each with the history before it: what is to be
learned from a line is its last answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from pydantic import BaseModel, ConfigDict

from datagen import shards
from datagen.answers import seed_of

_SHAREGPT_ROLES = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool"}


class ExportCommand(BaseModel):
    """Write completions in a form that other tools read."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    folder: tyro.conf.Positional[Path] = Path("completions_raw")
    """The run's folder."""
    to: Literal["openai", "sharegpt", "speculators", "run-batch"]
    """`openai`: messages; `sharegpt`: conversations; `speculators`: input_ids and loss_mask; `run-batch`: requests for `vllm run-batch`."""
    out: Path | None = None
    """File to write; by default `FOLDER_FORM.jsonl` beside the folder."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    num_rows: int
    num_left_out: int
    """Rows that the form cannot hold: no token ids for speculators, later turns (whose history is not known yet) for run-batch."""

    def __str__(self) -> str:
        left_out = f"; {self.num_left_out:,} rows left out" if self.num_left_out else ""
        return f"{self.path}: {self.num_rows:,} rows{left_out}"


def export(command: ExportCommand) -> Exported:
    """Write the export, whole or not at all.

    Raises:
        ValueError: no folder, no shards, or (for run-batch) no plan.
    """
    folder = command.folder
    path = command.out or folder.with_name(f"{folder.resolve().name}_{command.to.replace('-', '_')}.jsonl")
    rows = _requests(folder) if command.to == "run-batch" else _converted(folder, _FORMS[command.to])
    counts = {True: 0, False: 0}

    def lines() -> Iterator[bytes]:
        for row in rows:
            counts[row is not None] += 1
            if row is not None:
                yield shards.encode_row(row)

    shards.publish(path, lines())
    return Exported(path, counts[True], counts[False])


def to_openai(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as OpenAI messages, the answer last; thinking as `reasoning_content`, as chat templates read it."""
    answer: dict[str, Any] = {"role": "assistant", "content": row["completion"]}
    if row.get("reasoning"):
        answer["reasoning_content"] = row["reasoning"]
    if row.get("tool_calls"):
        answer["tool_calls"] = row["tool_calls"]
    tools = {"tools": row["tools"]} if row.get("tools") else {}
    return {"id": row.get("id"), "messages": [*row["messages"], answer], **tools}


def to_sharegpt(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as ShareGPT conversations; tool calls are written as the JSON that they are."""
    turns = to_openai(row)["messages"]
    said = [{"from": _SHAREGPT_ROLES[turn["role"]], "value": _text(turn)} for turn in turns]
    return {"id": row.get("id"), "conversations": said}


def to_speculators(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return a row as token ids and a mask that is 1 on what the target generated, or None without token ids."""
    prompt, completion = row.get("prompt_token_ids"), row.get("completion_token_ids")
    if not prompt or not completion:
        return None
    mask = [0] * len(prompt) + [1] * len(completion)
    return {"id": row.get("id"), "input_ids": prompt + completion, "loss_mask": mask}


_FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "openai": to_openai,
    "sharegpt": to_sharegpt,
    "speculators": to_speculators,
}


def _converted(
    folder: Path, form: Callable[[dict[str, Any]], dict[str, Any] | None]
) -> Iterator[dict[str, Any] | None]:
    for path in shards.list_shards(folder):
        yield from map(form, shards.read_rows(path))


def _requests(folder: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the planned prompts that are not published yet, as the input of `vllm run-batch`."""
    from datagen.plan import open_plan

    plan = open_plan(folder)
    target = plan.manifest.target
    for index in range(plan.num_shards):
        if (folder / shards.shard_name(index)).exists():
            continue
        for planned in plan.shard(index):
            if planned.parent is not None:
                yield None
                continue
            thinking = {} if planned.thinking is None else {"enable_thinking": planned.thinking}
            body = {
                "model": target.model,
                "messages": planned.messages,
                **({"tools": planned.tools} if planned.tools else {}),
                "chat_template_kwargs": {**target.chat_template_kwargs, **thinking},
                **planned.sampling.model_dump(),
                "seed": seed_of(planned.id),
                "return_token_ids": True,
            }
            yield {"custom_id": planned.id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _text(turn: dict[str, Any]) -> str:
    content = turn.get("content") or ""
    if isinstance(content, list):
        content = "".join(part.get("text", "") for part in content)
    calls = "".join(
        f"\n<tool_call>{shards.encode_row(call).decode().strip()}</tool_call>" for call in turn.get("tool_calls", [])
    )
    return content + calls

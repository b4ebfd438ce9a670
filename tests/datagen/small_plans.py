"""Small plans, a tokenizer without a vocabulary, and whole runs of the echo engine, for the tests of the run."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from datagen import ledger, shards
from datagen.engines import Engine
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.ledger import Ledger
from datagen.outcome import Outcome, RunOptions
from datagen.plan import CARD, FOLDER, Plan, open_plan, shard_file
from datagen.prompts import PlannedPrompt, encode
from datagen.runner import Run
from manifests.schema import Manifest, Sampling, Source, Target

QUICK = RunOptions(backoff_s=0.01, longest_backoff_s=0.05, sync_s=0.05, disk_reserve_mib=0, max_bad_frac=1)
"""Impatient, so that tests are."""


class ByteRenderer:
    """Renders a conversation as its UTF-8 bytes."""

    context_length = 4096

    def render(self, messages: list[dict[str, Any]], tools: Any, thinking: bool | None) -> list[int]:
        """Return one token per byte of the turns."""
        return list("\n".join(str(message["content"]) for message in messages).encode())

    def split_reasoning(self, text: str, prompt_token_ids: list[int] | None) -> tuple[str | None, str]:
        """Return no reasoning."""
        return None, text

    def describe(self) -> dict[str, Any]:
        """Return what it is."""
        return {"tokenizer": "bytes"}


def make_plan(
    folder: Path, num_conversations: int, turns: int = 1, shard_rows: int = 10, max_tokens: int = 64, top_k: int = -1
) -> Plan:
    """Write a plan of conversations of `turns` turns each into `folder`."""
    manifest = Manifest(
        name="small",
        target=Target(model="none/none"),
        sources=(Source(name="a", files="a.jsonl", domain="chat", license="MIT", count=num_conversations),),
        shard_rows=shard_rows,
    )
    sampling = Sampling(max_tokens=max_tokens, top_k=top_k)
    rows = [row for number in range(num_conversations) for row in conversation(number, turns, sampling)]
    card: dict[str, Any] = {
        "manifest": manifest.model_dump(mode="json"),
        "report": {"sources": [], "warnings": []},
        "shards": [],
    }
    (folder / FOLDER).mkdir(parents=True)
    for at in range(0, len(rows), shard_rows):
        lines = b"".join(encode(row) for row in rows[at : at + shard_rows])
        (folder / FOLDER / shard_file(len(card["shards"]))).write_bytes(zstandard.compress(lines))
        card["shards"].append({"num_rows": lines.count(b"\n"), "digest": hashlib.sha256(lines).hexdigest()})
    shards.write_card(folder / FOLDER / CARD, card)
    return open_plan(folder)


def conversation(number: int, turns: int, sampling: Sampling) -> Iterator[PlannedPrompt]:
    """Yield the rows of one conversation."""
    ids = [hashlib.sha256(f"{number}/{turn}".encode()).hexdigest()[:32] for turn in range(turns)]
    for turn in range(turns):
        yield PlannedPrompt(
            id=ids[turn],
            source="ab"[number % 2],
            domain="chat",
            messages=[{"role": "user", "content": f"question {number}, turn {turn}"}],
            tools=None,
            sampling=sampling,
            thinking=None,
            parent=ids[turn - 1] if turn else None,
            conversation=ids[0],
            rollout=0,
        )


def run_plan(
    plan: Plan,
    engine: Engine | None = None,
    options: RunOptions = QUICK,
    rank: int = 0,
    world: int = 1,
    stop_after_s: float | None = None,
) -> Outcome:
    """Run a plan in its own folder to its end, or for a while."""

    async def go() -> Outcome:
        ledger.hidden(plan.folder)
        book = Ledger(plan, plan.folder, rank, world)
        if options.retry_failed:
            book.reopen_failed()
        serving = engine or EchoEngine(EchoOptions(concurrency=16))
        await serving.start()
        run = Run(book, serving, ByteRenderer(), options)
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, run.stop)
        try:
            return await run.run()
        finally:
            await serving.close()

    return asyncio.run(go())


def published(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every published shard by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("completions_*.jsonl"))}

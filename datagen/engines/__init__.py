"""Engines turn requests into generations. Three serve (`vllm`, `http`, Ray) and one is a deterministic fake (`echo`).

The seam is one coroutine per request: the runner admits as many as `capacity` allows and each returns as soon as it
is finished, so there are no batch barriers. Faults come back as one of four exceptions, because the runner answers
each of them differently: wait and retry, slow down, record the row as failed, or pause until the engine is back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from manifests.schema import Sampling


@dataclass(frozen=True, slots=True)
class Request:
    """One generation to make."""

    id: str
    """Plan id."""
    prompt_token_ids: list[int]
    """The rendered prompt, exactly as the target should see it."""
    sampling: Sampling
    """Resolved sampling parameters."""
    seed: int
    """Sampling seed; a hash of the id."""
    session: str
    """Conversation key: requests that share it go to the same replica, where their prefix is cached."""


@dataclass(frozen=True, slots=True)
class Generation:
    """What the target generated for one request."""

    token_ids: list[int]
    """Sampled tokens, the end token included."""
    text: str
    """Decoded text, special tokens removed, reasoning included unless the engine separated it."""
    finish_reason: str
    """`stop`, `length`, `repetition`, `tool_calls`, ... as the engine said it."""
    reasoning: str | None = None
    """The thinking part, where the engine separated it from `text`."""


class TransientError(Exception):
    """The request failed in a way that may pass: retry with backoff."""


class CapacityError(Exception):
    """The engine asks for less: slow down, retry after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RowError(Exception):
    """This row cannot be answered (prompt too long, refused as invalid): record it as failed and go on."""


class EngineDownError(Exception):
    """The engine is gone: pause admission and probe. Rows in flight go back to pending, never to failed."""


class Engine(Protocol):
    """What the runner asks of an engine."""

    @property
    def capacity(self) -> int:
        """Requests that may be in flight at once; known once it has started, and may change."""

    async def start(self) -> None:
        """Load the model or find the server, and prove that it returns token ids.

        Raises:
            ValueError: it cannot serve this target; says what to change.
        """

    async def generate(self, request: Request) -> Generation:
        """Answer one request. Cancelling the task aborts it in the engine.

        Raises:
            TransientError, CapacityError, RowError, EngineDownError.
        """

    async def healthy(self) -> bool:
        """Return whether the engine answers; asked while it is thought to be down.

        Raises:
            EngineDownError: it will not come back; waiting is of no use.
        """

    def describe(self) -> dict[str, Any]:
        """Return name, versions and settings for `run.json`."""

    async def close(self) -> None:
        """Abort what is in flight and release the hardware."""

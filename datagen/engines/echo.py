"""A deterministic engine without a model: answers, lengths, delays and faults all follow from a hash of the request.

It lets the run itself be measured and broken: the same plan gives the same bytes whatever was killed on the way, and
faults strike the same rows each time. Answers are slices of one fixed stream of words, so that a long answer costs
the engine almost nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from datagen.engines import CapacityError, Generation, Request, RowError, TransientError

_WORD_CHARS = 5
_STREAM_TOKENS = 1 << 15
_FIRST_TOKEN, _NUM_TOKENS = 100, 20_000
"""Token ids that every real vocabulary has."""
_MULTIPLIER, _INCREMENT = 1_103_515_245, 12_345
"""The linear congruential generator of ISO C's example `rand`."""


class EchoOptions(BaseModel):
    """What the echo engine pretends."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    tokens: int = Field(default=64, ge=1)
    """Mean completion length in tokens; lengths spread evenly from half to one and a half times it, capped by `max_tokens`."""
    delay_s: float = Field(default=0.0, ge=0)
    """Mean time to answer; spread like the lengths."""
    concurrency: int = Field(default=256, ge=1)
    """Requests in flight at once."""
    transient_frac: float = Field(default=0.0, ge=0, le=1)
    """Fraction of rows whose first attempt fails in passing."""
    capacity_frac: float = Field(default=0.0, ge=0, le=1)
    """Fraction of rows whose first attempt is told to slow down."""
    refused_frac: float = Field(default=0.0, ge=0, le=1)
    """Fraction of rows that are refused for good."""


class EchoEngine:
    """See the module."""

    def __init__(self, options: EchoOptions | None = None) -> None:
        self.options = options or EchoOptions()
        self.capacity: int = self.options.concurrency
        self._attempts: Counter[str] = Counter()
        self._token_ids, self._text = _stream()

    async def start(self) -> None:
        """Nothing to load."""

    async def generate(self, request: Request) -> Generation:
        """Answer, or fail as the hash of the id says."""
        draw = hashlib.sha256(request.id.encode()).digest()
        await asyncio.sleep(self.options.delay_s * (0.5 + draw[0] / 255))
        if self.options.transient_frac or self.options.capacity_frac or self.options.refused_frac:
            self._strike(request, draw)
        wanted = int(self.options.tokens * (0.5 + draw[4] / 255)) or 1
        num_tokens = min(wanted, request.sampling.max_tokens)
        start = int.from_bytes(draw[5:8], "big") % (_STREAM_TOKENS // 2)
        return Generation(
            token_ids=self._slice(start, num_tokens),
            text=self._text[start * _WORD_CHARS : (start + num_tokens) * _WORD_CHARS],
            finish_reason="stop" if wanted < request.sampling.max_tokens else "length",
        )

    async def healthy(self) -> bool:
        """Always."""
        return True

    def describe(self) -> dict[str, Any]:
        """Return the name and what is pretended."""
        return {"engine": "echo", **self.options.model_dump()}

    async def close(self) -> None:
        """Nothing to release."""

    def _slice(self, start: int, num_tokens: int) -> list[int]:
        return self._token_ids[start : start + num_tokens]

    def _strike(self, request: Request, draw: bytes) -> None:
        self._attempts[request.id] += 1
        if draw[1] < 256 * self.options.refused_frac:
            raise RowError("refused, as its hash says")
        if self._attempts[request.id] > 1:
            return
        if draw[2] < 256 * self.options.transient_frac:
            raise TransientError("failed in passing, as its hash says")
        if draw[3] < 256 * self.options.capacity_frac:
            raise CapacityError("slow down, as its hash says", retry_after_s=0.01)


def _stream() -> tuple[list[int], str]:
    state, token_ids, words = 1, [], []
    for _ in range(_STREAM_TOKENS):
        state = (state * _MULTIPLIER + _INCREMENT) % (1 << 31)
        number = (state >> 11) % _NUM_TOKENS
        token_ids.append(_FIRST_TOKEN + number)
        letters = (97 + number // 26**place % 26 for place in range(_WORD_CHARS - 1))
        words.append(bytes(letters).decode() + " ")
    return token_ids, "".join(words)

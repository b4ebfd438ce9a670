"""Which row is asked next, how many at once, and how long each may take.

Three small deciders without input or output, so that they can be tested by themselves:

- `Queue`: rows in plan order, so that shards close soon after they open; once the last shard is open, the rows that are
  expected to take longest first, so that the end of a run is not one engine finishing one long answer.
- `Limit`: requests in flight, by additive increase and multiplicative decrease on what the engine says of its capacity.
- `Deadlines`: a time limit per request from its token budget and the slowest speed seen.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from datagen.prompts import PlannedPrompt


@dataclass(slots=True)
class Row:
    """A planned row on its way."""

    shard: int
    position: int
    planned: PlannedPrompt
    turns_left: int = 1
    """This turn and those of its conversation that wait for it."""
    attempts: int = 0
    """Attempts that failed in passing."""

    @property
    def place(self) -> tuple[int, int]:
        """Place in the plan."""
        return self.shard, self.position


@dataclass
class Lengths:
    """Observed completion lengths by source: what the time left and the order at the end are estimated from."""

    default: float
    """Tokens expected before anything was observed."""
    num: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    tokens: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def observe(self, source: str, num_tokens: int) -> None:
        """Count one finished answer."""
        self.num[source] += 1
        self.tokens[source] += num_tokens

    def expected(self, source: str, max_tokens: int) -> float:
        """Return the tokens expected of one row: the source's mean, or the default, within the row's budget."""
        mean = self.tokens[source] / self.num[source] if self.num.get(source) else self.default
        return min(mean, max_tokens)


class Queue:
    """Rows that may be asked now."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._heaps: dict[tuple[str, int, int], list[tuple[tuple[int, int], Row]]] = {}
        """Rows of equal expectation (source, budget, turns left), each heap in plan order."""
        self._num = 0

    def __len__(self) -> int:
        return self._num

    def push(self, row: Row) -> None:
        """Add a row, new or given back."""
        key = (row.planned.source, row.planned.sampling.max_tokens, row.turns_left)
        heapq.heappush(self._heaps.setdefault(key, []), (row.place, row))
        self._num += 1

    def pop(self, longest_first: bool) -> Row:
        """Take the next row: the first in plan order, or the one whose conversation is expected to take longest."""
        choose: Callable[[tuple[str, int, int]], tuple[float, tuple[int, int]]]
        if longest_first:
            choose = lambda key: (-self._expected(key), self._heaps[key][0][0])  # noqa: E731  # one of two short rules
        else:
            choose = lambda key: (0.0, self._heaps[key][0][0])  # noqa: E731  # the other one
        key = min(self._heaps, key=choose)
        _, row = heapq.heappop(self._heaps[key])
        if not self._heaps[key]:
            del self._heaps[key]
        self._num -= 1
        return row

    def _expected(self, key: tuple[str, int, int]) -> float:
        source, max_tokens, turns_left = key
        return self._lengths.expected(source, max_tokens) * turns_left


class Limit:
    """Requests that may be in flight: a quarter less when the engine asks for less, one more per round that went well.

    Additive increase, multiplicative decrease (Chiu and Jain, 1989), as TCP does. Of the many requests that one
    overload refuses only the first counts: those admitted before the last decrease say nothing about the new limit.
    """

    decrease = 0.75

    def __init__(self, most: int) -> None:
        self.most = most
        self._limit = float(most)
        self._decreased_at = float("-inf")

    @property
    def current(self) -> int:
        """Requests that may be in flight now."""
        return max(1, min(int(self._limit), self.most))

    def succeeded(self) -> None:
        """Count one answer."""
        self._limit = min(float(self.most), self._limit + 1 / max(self._limit, 1.0))

    def refused(self, admitted_at: float, now: float) -> None:
        """Count one refusal of a request that was admitted at `admitted_at`."""
        if admitted_at > self._decreased_at:
            self._limit = max(1.0, self.current * self.decrease)
            self._decreased_at = now


class Deadlines:
    """How long a request may take: a fixed allowance, and its token budget at a floor speed.

    Until speeds are known the floor is the configured one. Then it is a tenth of the slowest tenth of what was seen, so
    that a fast engine's lost request is noticed in minutes; it never falls below the configured floor.
    """

    margin = 10
    _least_seen = 50
    _most_seen = 1000

    def __init__(self, floor_tokens_per_s: float, allowance_s: float) -> None:
        self.floor_tokens_per_s = floor_tokens_per_s
        self._configured = floor_tokens_per_s
        self._allowance_s = allowance_s
        self._speeds: deque[float] = deque(maxlen=self._most_seen)
        self._num_seen = 0

    def observe(self, num_tokens: int, took_s: float) -> None:
        """Count one finished request."""
        self._speeds.append(num_tokens / max(took_s, 1e-6))
        self._num_seen += 1
        if self._num_seen % self._least_seen == 0:
            slow = sorted(self._speeds)[len(self._speeds) // 10]
            self.floor_tokens_per_s = max(self._configured, slow / self.margin)

    def seconds(self, max_tokens: int) -> float:
        """Return the time limit of a request with this budget."""
        return self._allowance_s + max_tokens / self.floor_tokens_per_s


def backoff_s(row_id: str, attempt: int, base_s: float, most_s: float) -> float:
    """Return the wait before attempt `attempt` (1-based retry): doubling, with a jitter that follows from the row."""
    draw = hashlib.sha256(f"{row_id}/{attempt}".encode()).digest()[0] / 255
    return min(most_s, base_s * 2 ** (attempt - 1)) * (0.5 + draw)

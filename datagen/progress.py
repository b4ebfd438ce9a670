"""What a run has done and how fast: counts, rates, time left. Counting here, words and files in `progress_view`."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from datagen.admission import Lengths

_RECENT_S = 600.0
_NOW_S = 30.0
_SLOT_S = 5.0


@dataclass
class SourceTally:
    """What happened to one source's rows, in this process."""

    num_done: int = 0
    num_failed: int = 0
    completion_tokens: int = 0


@dataclass
class Tally:
    """Counts of one process since it started.

    Rates come from slots of 5 s, so that a long run keeps a few hundred numbers and no more.
    """

    lengths: Lengths
    started: float = field(default_factory=time.monotonic)
    by_source: dict[str, SourceTally] = field(default_factory=dict)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    num_done: int = 0
    num_failed: int = 0
    num_flagged: int = 0
    _slots: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=int(_RECENT_S / _SLOT_S) + 1))

    def landed(
        self, source: str, prompt_tokens: int, completion_tokens: int, finish_reason: str, flags: list[str]
    ) -> None:
        """Count one answered row."""
        tally = self.by_source.setdefault(source, SourceTally())
        tally.num_done += 1
        tally.completion_tokens += completion_tokens
        self.num_done += 1
        self.num_flagged += bool(flags)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        self.finish_reasons[finish_reason] += 1
        self.flags.update(flags)
        self.lengths.observe(source, completion_tokens)
        self._mark(completion_tokens)

    def failed(self, source: str) -> None:
        """Count one row that cannot be answered."""
        self.by_source.setdefault(source, SourceTally()).num_failed += 1
        self.num_failed += 1

    @property
    def bad_frac(self) -> float:
        """Fraction of this process's rows that failed or carry a flag."""
        seen = self.num_done + self.num_failed
        return (self.num_flagged + self.num_failed) / seen if seen else 0.0

    def tokens_per_s(self, over_s: float | None) -> float:
        """Return completion tokens per second over the last `over_s` seconds, or since the start (None)."""
        now = time.monotonic()
        if over_s is None:
            return self.completion_tokens / max(now - self.started, 1e-9)
        since = max(now - over_s, self.started)
        tokens = sum(num for slot, num in self._slots if slot + _SLOT_S > since)
        return tokens / max(now - since, 1e-9)

    def rates(self) -> dict[str, float]:
        """Return completion tokens per second: now (30 s), over ten minutes, since the start."""
        return {
            "now": round(self.tokens_per_s(_NOW_S), 1),
            "ten_minutes": round(self.tokens_per_s(_RECENT_S), 1),
            "life": round(self.tokens_per_s(None), 1),
        }

    def _mark(self, tokens: int) -> None:
        slot = time.monotonic() // _SLOT_S * _SLOT_S
        if self._slots and self._slots[-1][0] == slot:
            self._slots[-1] = (slot, self._slots[-1][1] + tokens)
        else:
            self._slots.append((slot, tokens))


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment: what `status.json`, the progress line and Prometheus are made of."""

    num_rows: int
    """Rows of this rank in the plan."""
    num_done: int
    num_failed: int
    num_in_flight: int
    limit: int
    """Requests that may be in flight."""
    num_open_shards: int
    num_published: int
    num_shards: int
    tokens_left: float
    """Completion tokens expected of the pending rows, by observed lengths."""
    oldest_s: float
    """Age of the oldest request in flight."""
    disk_free_bytes: int
    state: str
    """`running`, `paused` (told to slow down), `engine down`, or how the run ended."""
    trouble: str = ""
    """What the engine said, while it is not running."""

    @property
    def num_pending(self) -> int:
        return self.num_rows - self.num_done - self.num_failed


def seconds_left(snapshot: Snapshot, tally: Tally) -> float | None:
    """Return the time left at the speed of the last ten minutes, or None before there is one."""
    speed = tally.tokens_per_s(_RECENT_S)
    return snapshot.tokens_left / speed if speed > 0 else None

"""Whether the engine is well, judged from what comes back: when to admit nothing, and when to give up on it.

Pure bookkeeping of times (seconds of a monotonic clock), so that it can be tested by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Health:
    """What answers and faults say of the engine."""

    patience_s: float
    """How long there may be nothing but faults."""
    last_success: float
    first_fault: float | None = None
    """When the faults began that no success has followed."""
    paused_until: float = 0.0
    is_down: bool = False
    trouble: str = ""
    """What the engine said last."""

    def succeeded(self, now: float) -> None:
        """Count an answer."""
        self.last_success = now
        self.first_fault = None

    def fault(self, now: float, message: str) -> None:
        """Count a fault that is not the row's."""
        self.first_fault = self.first_fault or now
        self.trouble = message

    def pause(self, until: float) -> None:
        """Admit nothing before `until`, as the engine asks."""
        self.paused_until = max(self.paused_until, until)

    def admits(self, now: float) -> bool:
        """Return whether requests may be sent."""
        return not self.is_down and now >= self.paused_until

    def state(self, now: float) -> str:
        """Return `running`, `paused` or `engine down`."""
        return "running" if self.admits(now) else "engine down" if self.is_down else "paused"

    def is_hopeless(self, now: float, in_flight_since: Iterable[float]) -> bool:
        """Return whether faults have gone on for too long and no request in flight could still prove the engine well.

        One that was sent before the faults began has had no verdict yet; its own deadline bounds how long that takes.
        """
        if self.first_fault is None or now - self.first_fault < self.patience_s:
            return False
        return all(started > self.first_fault for started in in_flight_since)

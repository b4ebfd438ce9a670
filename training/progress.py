"""What a person sees of a run: a tqdm line in a terminal, a plain line now and then without one."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

PLAIN_EVERY_S = 15.0
"""Seconds between lines where there is no terminal."""


class Progress:
    """The leading rank's voice; silent on the others."""

    def __init__(self, total_steps: int, done: int, speaks: bool):
        self._speaks, self._total, self._started_at = speaks, total_steps, done
        self._terminal = speaks and sys.stderr.isatty()
        self._began = self._said = time.monotonic()
        self._bar = tqdm(total=total_steps, initial=done, unit="step", dynamic_ncols=True, disable=not self._terminal)

    def say(self, line: str) -> None:
        """Say one line."""
        if self._speaks:
            tqdm.write(line, file=sys.stderr)

    def step(self, done: int) -> None:
        """Advance to `done` steps."""
        self._bar.update(done - self._bar.n)

    def figures(self, record: dict[str, Any]) -> None:
        """Show a line of metrics."""
        now = time.monotonic()
        line = (
            f"loss {record['loss']:.3f}  accuracy {record.get('accuracy', 0):.3f}  streak {record.get('streak', 0):.2f}  "
            f"tau {record.get('tau', 1):.2f}  {record['tokens_per_s']:,.0f} tokens/s"
        )
        if self._terminal:
            self._bar.set_postfix_str(line)
        elif self._speaks and (now - self._said >= PLAIN_EVERY_S or record["step"] == self._total):
            self._said = now
            steps_here = max(1, record["step"] - self._started_at)
            left_s = (now - self._began) / steps_here * (self._total - record["step"])
            self.say(f"step {record['step']}/{self._total}  {line}  {clock(left_s)} left")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._bar.close()


def clock(seconds: float) -> str:
    """Return seconds as h:mm:ss."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"

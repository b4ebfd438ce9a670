"""A run's progress for people and for machines: a bar on a terminal, a plain line now and then without one, `status.json`.

`status.json` is a cache that is rewritten every few seconds. Nothing ever reads it to decide anything.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

from datagen.progress import Snapshot, Tally, seconds_left

_FIRST_LINE_S = 10.0
_LONGEST_PAUSE_S = 300.0
"""Plain lines come at 10 s, 20 s, 40 s, ... and then every 5 minutes: a log of days stays readable."""

_READING_PAUSE_S = 10.0


class View:
    """Shows snapshots on stderr."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: tqdm[Any] | None = None
        self._pause_s = _FIRST_LINE_S
        self._next_line: float | None = None
        self._trouble = ""

    def show(self, snapshot: Snapshot, tally: Tally) -> None:
        """Bring the terminal up to date; without one, print a line when it is time."""
        if self._quiet:
            return
        if snapshot.trouble != self._trouble:
            self._trouble = snapshot.trouble
            self.say(f"{snapshot.state}: {snapshot.trouble}" if snapshot.trouble else "running again")
        if sys.stderr.isatty():
            self._show_bar(snapshot, tally)
        else:
            self._show_line(snapshot, tally)

    def reading(self, source: str, num_rows: int) -> None:
        """Say, now and then, how far planning has read a source."""
        now = time.monotonic()
        if self._next_line is None:
            self._next_line = now + _READING_PAUSE_S
        elif now >= self._next_line:
            self.say(f"planning: {num_rows:,} rows of {source} read")
            self._next_line = now + _READING_PAUSE_S

    def say(self, message: str) -> None:
        """Print one line, above the bar where there is one."""
        if not self._quiet:
            tqdm.write(message, file=sys.stderr)
            sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()

    def _show_bar(self, snapshot: Snapshot, tally: Tally) -> None:
        answered = snapshot.num_done + snapshot.num_failed
        if self._bar is None:
            self._bar = tqdm(total=snapshot.num_rows, initial=answered, unit="row", dynamic_ncols=True)
        self._bar.n = answered
        self._bar.set_postfix_str(_short(snapshot, tally), refresh=True)

    def _show_line(self, snapshot: Snapshot, tally: Tally) -> None:
        now = time.monotonic()
        if self._next_line is None:
            self._next_line = now + self._pause_s
        elif now >= self._next_line:
            self.say(line(snapshot, tally))
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
            self._next_line = now + self._pause_s


def line(snapshot: Snapshot, tally: Tally) -> str:
    """Return the progress as one plain line."""
    answered = snapshot.num_done + snapshot.num_failed
    parts = [
        f"{answered:,}/{snapshot.num_rows:,} rows ({answered / max(snapshot.num_rows, 1):.1%})",
        _short(snapshot, tally),
        f"shards {snapshot.num_published}/{snapshot.num_shards} published, {snapshot.num_open_shards} open",
        f"oldest {snapshot.oldest_s:.0f} s",
        f"disk {snapshot.disk_free_bytes / 2**30:.1f} GiB free",
        *_counts("finish", tally.finish_reasons),
        *_counts("flags", tally.flags),
        *_counts("faults", tally.faults),
    ]
    return " | ".join(parts)


def status(snapshot: Snapshot, tally: Tally) -> dict[str, Any]:
    """Return what `status.json` says."""
    return {
        "state": snapshot.state,
        "trouble": snapshot.trouble,
        "updated_unix_s": round(time.time(), 3),
        "rows": {
            "planned": snapshot.num_rows,
            "done": snapshot.num_done,
            "failed": snapshot.num_failed,
            "pending": snapshot.num_pending,
            "in_flight": snapshot.num_in_flight,
        },
        "in_flight_limit": snapshot.limit,
        "shards": {
            "planned": snapshot.num_shards,
            "published": snapshot.num_published,
            "open": snapshot.num_open_shards,
        },
        "completion_tokens_per_s": tally.rates(),
        "tokens": {
            "prompt": tally.prompt_tokens,
            "completion": tally.completion_tokens,
            "expected_left": round(snapshot.tokens_left),
        },
        "seconds_left": seconds_left(snapshot, tally),
        "oldest_in_flight_s": round(snapshot.oldest_s, 1),
        "disk_free_bytes": snapshot.disk_free_bytes,
        "finish_reasons": dict(tally.finish_reasons),
        "flags": dict(tally.flags),
        "faults": dict(tally.faults),
        "bad_frac": round(tally.bad_frac, 4),
        "sources": {
            name: {
                "done": source.num_done,
                "failed": source.num_failed,
                "completion_tokens": source.completion_tokens,
                "mean_completion_tokens": round(source.completion_tokens / max(source.num_done, 1), 1),
            }
            for name, source in sorted(tally.by_source.items())
        },
    }


def prometheus_text(said: dict[str, Any]) -> str:
    """Return a status in Prometheus's text exposition format."""
    samples = [
        *((f'datagen_rows{{state="{state}"}}', num) for state, num in said["rows"].items()),
        *((f'datagen_shards{{state="{state}"}}', num) for state, num in said["shards"].items()),
        *(
            (f'datagen_completion_tokens_per_s{{over="{over}"}}', num)
            for over, num in said["completion_tokens_per_s"].items()
        ),
        *((f'datagen_tokens_total{{kind="{kind}"}}', said["tokens"][kind]) for kind in ("prompt", "completion")),
        *((f'datagen_finish_total{{reason="{reason}"}}', num) for reason, num in said["finish_reasons"].items()),
        *((f'datagen_flags_total{{flag="{flag}"}}', num) for flag, num in said["flags"].items()),
        *((f'datagen_faults_total{{kind="{kind}"}}', num) for kind, num in said["faults"].items()),
        *(
            (f'datagen_source_completion_tokens_total{{source="{name}"}}', source["completion_tokens"])
            for name, source in said["sources"].items()
        ),
        ("datagen_oldest_in_flight_seconds", said["oldest_in_flight_s"]),
        ("datagen_disk_free_bytes", said["disk_free_bytes"]),
    ]
    return "".join(f"{name} {value}\n" for name, value in samples)


def duration(seconds: float | None) -> str:
    """Return a duration for people: `42 s`, `12 min`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None:
        return "unknown"
    minutes = int(seconds // 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 1:
        return f"{minutes} min"
    days, hours = divmod(hours, 24)
    return f"{hours} h {minutes} min" if days < 1 else f"{days} d {hours} h"


def _short(snapshot: Snapshot, tally: Tally) -> str:
    rates = tally.rates()
    state = "" if snapshot.state == "running" else f"{snapshot.state}, "
    return (
        f"{state}{rates['now']:,.0f} tok/s now, {rates['ten_minutes']:,.0f} 10 min, {rates['life']:,.0f} life, "
        f"{duration(seconds_left(snapshot, tally))} left, {snapshot.num_in_flight} in flight, {snapshot.num_failed} failed"
    )


def _counts(name: str, counts: dict[str, int]) -> list[str]:
    said = ", ".join(f"{key} {num}" for key, num in sorted(counts.items()))
    return [f"{name}: {said}"] if said else []

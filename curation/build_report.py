"""What a person sees of a build: a line per step while it runs, the funnel and the mix when it is done."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from tqdm import tqdm

from curation.build import Built
from curation.table import columns, percent, plain

_PLAIN_LINE_S = 10.0
"""Without a terminal, seconds between lines of one step."""


class StepProgress:
    """Shows the steps of a build on stderr: a bar on a terminal, a plain line now and then without one."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._step = ""
        self._said_at = 0.0

    def __enter__(self) -> StepProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Show that `done` of `total` units of a step are done."""
        if sys.stderr.isatty():
            self._show_bar(step, done, total)
        elif step != self._step or done == total or time.monotonic() - self._said_at >= _PLAIN_LINE_S:
            if not (step == self._step and total == 1):
                sys.stderr.write(f"{step}\n" if total <= 1 else f"{step}: {done:,} of {total:,}\n")
                sys.stderr.flush()
            self._said_at = time.monotonic()
        self._step = step

    def _show_bar(self, step: str, done: int, total: int) -> None:
        if step != self._step or self._bar is None:
            self._close()
            unit = "B" if step == "read" else "it"
            self._bar = tqdm(total=total, desc=f"{step:<14}", unit=unit, unit_scale=step == "read", file=sys.stderr)
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def build_text(built: Built) -> str:
    """Return the funnel, the mix and the notes of a finished build as text."""
    card = built.card
    heldout = f", {card['heldout']['rows']:,} rows held out" if card["heldout"] else ""
    parts = [
        _funnel_table(card),
        _mix_table(card),
        "\n".join(["Notes", *(f"  {note}" for note in card["notes"])]) if card["notes"] else "",
        _encoder_line(built),
        f"{built.folder}: {card['rows']:,} rows, {card['tokens']:,} tokens ({card['trained_tokens']:,} generated) "
        f"in {len(card['shards'])} shards{heldout}\ntrain --data {built.folder}",
    ]
    return "\n\n".join(part for part in parts if part)


def _encoder_line(built: Built) -> str:
    """Say what encoded the rows that had no ids, and why nothing faster did."""
    if built.encoder is None:
        return ""
    over = "; ".join(f"{name} {reason}" for name, reason in built.encoder.passed_over.items())
    return f"encoded by {built.encoder.name}" + (f" ({over})" if over else "")


def _funnel_table(card: dict[str, Any]) -> str:
    """Return one line per step; what goes in less what is dropped is what is kept, line by line."""
    lines = card["input"]["lines"]
    unread = {name: lines[name] for name in ("rejected", "blank") if lines[name]}
    steps = [("read", lines["lines"], card["funnel"]["rows_in"], unread)]
    steps += [(step["step"], step["rows_in"], step["kept"], step["dropped"]) for step in card["funnel"]["steps"]]
    rows = [[name, f"{came:,}", f"{sum(gone.values()):,}", f"{kept:,}"] for name, came, kept, gone in steps]
    reasons = [
        ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in gone.items()) for *_, gone in steps
    ]
    table = columns(["step", "came in", "dropped", "kept"], rows).split("\n")
    return "\n".join(f"{line}  {reason}".rstrip() for line, reason in zip(table, ["reasons", *reasons], strict=True))


def _mix_table(card: dict[str, Any]) -> str:
    shares, total = card["target_shares"], sum(card["target_shares"].values()) or 1.0
    held = card["heldout"]["by_domain"] if card["heldout"] else {}
    rows = [
        [
            plain(domain),
            f"{counts['tokens']:,}",
            percent(counts["share"]),
            percent(shares[domain] / total) if domain in shares else "",
            f"{counts['rows']:,}",
            f"{held[domain]['rows']:,}" if domain in held else "0",
        ]
        for domain, counts in card["by_domain"].items()
    ]
    return columns(["domain", "tokens", "of tokens", "target", "rows", "held out"], rows)

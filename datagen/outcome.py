"""How a run is told to behave, and how it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from datagen.admission import Lengths
from datagen.ledger import Ledger
from datagen.progress import Tally

End = Literal["complete", "interrupted", "engine down", "disk low", "too many bad answers"]
"""How a run ends. All but the first leave rows pending; the same command goes on from there."""


class RunOptions(BaseModel):
    """How a run behaves; nothing here changes what is asked or what a row looks like."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    retry_failed: bool = False
    """Ask again for the rows that `failed.jsonl` lists."""
    open_shards: int = Field(default=16, ge=1)
    """Shards being answered at once; bounds memory and the journals' room on disk. More where these cannot keep the engine busy."""
    attempts: int = Field(default=5, ge=1)
    """Times a row may fail in passing before it is recorded as failed."""
    backoff_s: float = Field(default=1.0, ge=0)
    """Wait before the second attempt; doubles up to `longest_backoff_s`."""
    longest_backoff_s: float = Field(default=60.0, ge=0)
    """Longest wait between attempts, and between probes of an engine that is down."""
    floor_tokens_per_s: float = Field(default=0.5, gt=0)
    """Slowest speed of one request that still counts as alive, until speeds have been observed."""
    allowance_s: float = Field(default=300.0, gt=0)
    """What a request may take besides generating: queueing, prefill."""
    patience_s: float = Field(default=1800.0, ge=0)
    """How long the engine may answer nothing but faults before the run stops."""
    max_bad_frac: float = Field(default=0.5, ge=0, le=1)
    """Stop when more than this fraction of the answers is flagged or failed; 1 never stops."""
    bad_after_rows: int = Field(default=500, ge=1)
    """Rows to see before `max_bad_frac` is looked at."""
    sync_rows: int = Field(default=50, ge=1)
    """Answers after which the journals are made durable, ..."""
    sync_s: float = Field(default=1.0, gt=0)
    """... or the seconds, whichever comes first."""
    disk_reserve_mib: float = Field(default=256.0, ge=0)
    """Stop cleanly when less than this is free, besides what the open shards need to be published."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    end: End
    message: str
    """More about it, for people; empty when there is nothing to say."""
    num_done: int
    num_failed: int
    num_pending: int
    """Rows of this rank; together they are the rank's share of the plan."""
    tally: Tally


def nothing_left(ledger: Ledger) -> Outcome:
    """Return the outcome of a rank whose shards are all finished: no engine is needed for it."""
    mine = set(range(ledger.rank, ledger.plan.num_shards, ledger.world))
    num_rows = sum(ledger.plan.shards[index].num_rows for index in mine)
    failed = ledger.num_failed_in(mine)
    return Outcome("complete", "", num_rows - failed, failed, 0, Tally(Lengths(0)))

"""Launching: in this process, in one process per GPU, or as a rank of torchrun."""

from __future__ import annotations

from training.distributed import Ranks
from training.job import Job, prepare
from training.trainer import Ending, train


def launch(job: Job) -> Ending:
    """Run a job on this machine's share of ranks; return how it ended."""
    return train(prepare(job), Ranks())

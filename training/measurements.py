"""Sums of a run's metrics between two lines of `metrics.jsonl`, by domain and by length bucket.

Sums live on the device and are only added to, so measuring costs no synchronisation; ranks are summed when a line is due. They
are part of a checkpoint: a resumed run writes the line that the killed one would have written.
"""

from __future__ import annotations

import resource
from typing import Any

import torch
from torch import Tensor

from training.batches import Batch
from training.distributed import Ranks
from training.losses import LossOutput
from training.metrics import describe, metric_columns, metric_sums


class Measurements:
    """Metric sums since the last line."""

    def __init__(self, domains: list[str], num_buckets: int, block_size: int, device: torch.device):
        self.domains, self.block_size = domains, block_size
        self._number = {domain: number for number, domain in enumerate(domains)}
        columns = len(metric_columns(block_size))
        self.sums_GC = torch.zeros(len(domains) + num_buckets, columns, dtype=torch.float64, device=device)
        """One row per domain, then one per bucket."""
        self.tokens = torch.zeros(1, dtype=torch.float64, device=device)
        """Context tokens, padding not counted."""

    def add(self, output: LossOutput, document_A: Tensor, batch: Batch) -> Tensor:
        """Count a micro-batch; return its sums over all domains, float64 [columns]."""
        domain_D = torch.tensor([self._number[domain] for domain in batch.domains], device=document_A.device)
        domain_A = torch.where(document_A >= 0, domain_D[document_A.clamp(min=0)], -1)
        by_domain = metric_sums(output, domain_A, len(self.domains))
        total_C = by_domain.sum(dim=0)
        self.sums_GC[: len(self.domains)] += by_domain
        self.sums_GC[len(self.domains) + batch.bucket] += total_C
        self.tokens += (batch.document_T >= 0).sum()
        return total_C

    def summed(self, ranks: Ranks) -> tuple[Tensor, Tensor]:
        """Return sums and tokens over all drafter ranks; what is held here stays as it is."""
        return ranks.sum(self.sums_GC.clone()), ranks.sum(self.tokens.clone())

    def start_over(self) -> None:
        """Begin the next line."""
        self.sums_GC.zero_()
        self.tokens.zero_()

    def describe(self, sums_GC: Tensor) -> dict[str, Any]:
        """Return figures over everything, then the main ones `by_domain` and `by_bucket`, of summed sums."""
        num_domains = len(self.domains)
        by_domain, by_bucket = sums_GC[:num_domains], sums_GC[num_domains:]
        return {
            **describe(by_domain.sum(dim=0), self.block_size),
            "by_domain": {
                domain: _main_figures(row, self.block_size)
                for domain, row in zip(self.domains, by_domain, strict=True)
                if row[0] > 0
            },
            "by_bucket": {
                str(bucket): _main_figures(row, self.block_size) for bucket, row in enumerate(by_bucket) if row[0] > 0
            },
        }


def _main_figures(row_C: Tensor, block_size: int) -> dict[str, float]:
    figures = describe(row_C, block_size)
    return {name: figures[name] for name in ("blocks", "loss", "accuracy", "streak", "tau") if name in figures}


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most that this process has held at a time: allocated on its GPU, or resident where it trains on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

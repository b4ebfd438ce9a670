"""Batches: rows of a set packed into micro-batches, in an order that is a pure function of (seed, epoch, position).

Shape letters: T tokens of one packed micro-batch, padding included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """Packed documents of one micro-batch on one rank."""

    input_ids_T: torch.Tensor
    """int64 [T]: the documents one after another, then padding (id 0)."""
    document_T: torch.Tensor
    """int64 [T]: 0-based document number, -1 on the padding at the end."""
    position_T: torch.Tensor
    """int64 [T]: position within the document, from 0."""
    loss_mask_T: torch.Tensor
    """bool [T]: True on what the target generated."""
    row_ids: list[str]
    """Ids of the rows, by document number."""
    domains: list[str]
    """Domains of the rows, by document number."""
    bucket: int
    """Length bucket that the documents come from, 0 holds the shortest."""

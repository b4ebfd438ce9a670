"""Features of documents seen before, kept in memory: for small sets, whose target would otherwise run on every row each epoch.

Every document is run by itself, so what is remembered does not depend on the micro-batch in which it came first, and a
resumed run computes the same bits. What does not fit the budget is computed each time; nothing is evicted, so the cost of an
epoch stays the same.

Letters: T packed tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import xxhash
from torch import Tensor

from training.batches import Batch
from training.features import FeatureSource
from training.target import Features


class RememberingTarget:
    """A feature source that asks another one once per document, while its memory lasts."""

    def __init__(self, source: FeatureSource, budget_bytes: int) -> None:
        self._source, self._left_bytes = source, budget_bytes
        self._known: dict[bytes, Features] = {}
        self.head_VH = source.head_VH
        self.embed = source.embed
        self.logits = source.logits

    @property
    def wait_s(self) -> float:
        """Seconds spent waiting for features so far."""
        return self._source.wait_s

    def features(self, batch: Batch, layer_ids: tuple[int, ...]) -> Features:
        """Return the features of a micro-batch."""
        parts = [self._document(batch, number, layer_ids) for number in range(len(batch.row_ids))]
        padding = int((batch.document_T < 0).sum())
        return Features(
            _packed([part.hidden_TF for part in parts], padding), _packed([part.final_TH for part in parts], padding)
        )

    def stream(self, batches: Iterable[Batch], layer_ids: tuple[int, ...]) -> Iterator[tuple[Batch, Features]]:
        """Yield every micro-batch with its features, one at a time."""
        for batch in batches:
            yield batch, self.features(batch, layer_ids)

    def _document(self, batch: Batch, number: int, layer_ids: tuple[int, ...]) -> Features:
        alone = _alone(batch, number)
        key = xxhash.xxh3_128_digest(alone.input_ids_T.cpu().numpy().tobytes())
        if key in self._known:
            return self._known[key]
        found = self._source.features(alone, layer_ids)
        size = sum(tensor.numel() * tensor.element_size() for tensor in (found.hidden_TF, found.final_TH))
        if size <= self._left_bytes:
            self._left_bytes -= size
            self._known[key] = found
        return found


def _alone(batch: Batch, number: int) -> Batch:
    """Return a micro-batch of one of the documents."""
    mine = batch.document_T == number
    return Batch(
        input_ids_T=batch.input_ids_T[mine],
        document_T=torch.zeros_like(batch.document_T[mine]),
        position_T=batch.position_T[mine],
        loss_mask_T=batch.loss_mask_T[mine],
        row_ids=[batch.row_ids[number]],
        domains=[batch.domains[number]],
        bucket=batch.bucket,
    )


def _packed(parts: list[Tensor], padding: int) -> Tensor:
    return torch.cat([*parts, parts[0].new_zeros(padding, parts[0].shape[1])])

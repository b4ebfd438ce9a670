"""Where a drafter rank gets the target's features from: the target on the same rank, or a rank that runs nothing else.

Both give the same interface to training and to the held-out walk: features of a packed micro-batch, embeddings of block
tokens, and the frozen lm_head.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from torch import Tensor

from training.batches import Batch
from training.target import Features, Target


class FeatureSource(Protocol):
    """What training needs of the target."""

    head_VH: Tensor
    """The frozen lm_head."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [..., H] of token ids [...]."""

    def logits(self, final_NH: Tensor) -> Tensor:
        """Return [N, V] of final-normed hidden states."""

    def features(self, batch: Batch, layer_ids: tuple[int, ...]) -> Features:
        """Return the features of a micro-batch."""

    def stream(self, batches: Iterable[Batch], layer_ids: tuple[int, ...]) -> Iterator[tuple[Batch, Features]]:
        """Yield every micro-batch with its features."""


class LocalTarget:
    """The target on this rank."""

    def __init__(self, target: Target):
        self._target = target
        self.head_VH = target.head_VH
        self.embed = target.embed
        self.logits = target.logits
        self.features = target.features

    def stream(self, batches: Iterable[Batch], layer_ids: tuple[int, ...]) -> Iterator[tuple[Batch, Features]]:
        """Yield every micro-batch with its features, one at a time."""
        for batch in batches:
            yield batch, self._target.features(batch, layer_ids)

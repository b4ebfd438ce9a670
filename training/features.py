"""Where a drafter rank gets the target's features from: the target on the same rank, or ranks that run nothing else.

Both give the same interface to training and to the held-out walk: features of packed micro-batches, embeddings of block
tokens, and the frozen lm_head. Between ranks, features go point to point by a fixed round-robin: the n-th micro-batch of
drafter d comes from target rank (d + n) mod targets. Both sides count, so nothing is announced, every target rank has the same
number of drafters to serve, and queues are equally deep. Sending and receiving are double-buffered.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from training.batches import Batch
from training.distributed import Ranks
from training.target import Features, Target

BUFFERS = 2
"""Micro-batches of features under way between a target rank and the others."""


class FeatureSource(Protocol):
    """What training needs of the target."""

    head_VH: Tensor
    """The frozen lm_head."""

    @property
    def wait_s(self) -> float:
        """Seconds spent waiting for features so far."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [..., H] of token ids [...]."""

    def logits(self, final_NH: Tensor) -> Tensor:
        """Return [..., V] of final-normed hidden states [..., H]."""

    def features(self, batch: Batch, layer_ids: tuple[int, ...]) -> Features:
        """Return the features of a micro-batch."""

    def stream(self, batches: Iterable[Batch], layer_ids: tuple[int, ...]) -> Iterator[tuple[Batch, Features]]:
        """Yield every micro-batch with its features."""


class LocalTarget:
    """The target on this rank."""

    wait_s = 0.0

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


class RemoteTarget:
    """The target on other ranks; this one holds its embedding and lm_head only."""

    def __init__(self, ranks: Ranks, dtype: torch.dtype, with_final: bool):
        """Receive embedding and lm_head. `with_final`: final hidden states come with the features (for soft KL)."""
        self.wait_s = 0.0
        self._ranks, self._dtype, self._with_final = ranks, dtype, with_final
        self._turn = 0
        embed_shape, head_shape = ranks.from_rank(0, None)
        self._embed_VH = torch.empty(embed_shape, dtype=dtype, device=ranks.device)
        self.head_VH = torch.empty(head_shape, dtype=dtype, device=ranks.device)
        dist.broadcast(self._embed_VH, src=0)
        dist.broadcast(self.head_VH, src=0)

    def embed(self, ids: Tensor) -> Tensor:
        """Return embeddings [..., H] of token ids [...]."""
        return nn.functional.embedding(ids, self._embed_VH)

    def logits(self, final_NH: Tensor) -> Tensor:
        """Return [..., V] of final-normed hidden states [..., H]."""
        return nn.functional.linear(final_NH.to(self._dtype).contiguous(), self.head_VH)

    def features(self, batch: Batch, layer_ids: tuple[int, ...]) -> Features:
        """Return the features of a micro-batch."""
        return self._arrived(*self._expect(batch, layer_ids))

    def stream(self, batches: Iterable[Batch], layer_ids: tuple[int, ...]) -> Iterator[tuple[Batch, Features]]:
        """Yield every micro-batch with its features; those of the next one travel meanwhile."""
        expected: deque[tuple[Batch, Any]] = deque()
        for batch in batches:
            expected.append((batch, self._expect(batch, layer_ids)))
            if len(expected) == BUFFERS:
                first, coming = expected.popleft()
                yield first, self._arrived(*coming)
        for first, coming in expected:
            yield first, self._arrived(*coming)

    def _expect(self, batch: Batch, layer_ids: tuple[int, ...]) -> tuple[list[Any], Features]:
        source = server(self._ranks, self._ranks.drafter_number, self._turn)
        self._turn += 1
        num_tokens, width = batch.input_ids_T.shape[0], self.head_VH.shape[1]
        hidden_TF = torch.empty(num_tokens, len(layer_ids) * width, dtype=self._dtype, device=self._ranks.device)
        final_TH = torch.empty(
            num_tokens if self._with_final else 0, width, dtype=self._dtype, device=self._ranks.device
        )
        under_way = [dist.irecv(tensor, src=source) for tensor in (hidden_TF, final_TH) if tensor.numel()]
        return under_way, Features(hidden_TF, final_TH)

    def _arrived(self, under_way: list[Any], features: Features) -> Features:
        started = time.perf_counter()
        for work in under_way:
            work.wait()
        self.wait_s += time.perf_counter() - started
        return features


class FeatureServer:
    """A target rank's side: computes features and sends them to the drafter ranks that it serves."""

    def __init__(self, ranks: Ranks, target: Target, layer_ids: tuple[int, ...], with_final: bool):
        """Hand out embedding and lm_head.

        Raises:
            ValueError: the target's embedding module does more than look up rows, which drafter ranks could not know.
        """
        probe = torch.arange(4, device=ranks.device)
        if not torch.equal(target.embed(probe), target.embed_VH[probe]):
            raise ValueError("this target scales its embeddings; use placement.mode colocated")
        self._ranks, self._target, self._layer_ids, self._with_final = ranks, target, layer_ids, with_final
        self._turns: Counter[int] = Counter()
        self._under_way: deque[tuple[list[Any], Features]] = deque()
        ranks.from_rank(0, (tuple(target.embed_VH.shape), tuple(target.head_VH.shape)))
        dist.broadcast(target.embed_VH.detach().contiguous(), src=0)
        dist.broadcast(target.head_VH.detach().contiguous(), src=0)

    def serves_next(self, drafter: int) -> bool:
        """Count a micro-batch of `drafter`; return whether this rank is to serve it."""
        turn = self._turns[drafter]
        self._turns[drafter] += 1
        return server(self._ranks, drafter, turn) == self._ranks.rank

    def send(self, batch: Batch, drafter: int) -> None:
        """Compute the features of a micro-batch and send them; wait first where two are under way already."""
        while len(self._under_way) >= BUFFERS:
            self._let_go()
        features = self._target.features(batch, self._layer_ids)
        tensors = (features.hidden_TF, features.final_TH) if self._with_final else (features.hidden_TF,)
        under_way = [dist.isend(tensor, dst=self._ranks.num_targets + drafter) for tensor in tensors]
        self._under_way.append((under_way, features))

    def close(self) -> None:
        """Wait until everything has been taken."""
        while self._under_way:
            self._let_go()

    def _let_go(self) -> None:
        for work in self._under_way.popleft()[0]:
            work.wait()


def server(ranks: Ranks, drafter: int, turn: int) -> int:
    """Return the target rank that serves the `turn`-th micro-batch (0-based) of a drafter."""
    return (drafter + turn) % ranks.num_targets

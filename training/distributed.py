"""Ranks: who runs the target, who trains the drafter, and how they agree.

One process is the plain case of many: every function here works without torch.distributed as well. In split placement the
first ranks run the target only; drafter ranks form a group of their own, over which gradients and sums are reduced. What
ranks must agree on (to stop, for example) goes over gloo, so it never waits for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from training.recipe import PlacementSettings


@dataclass(frozen=True)
class Ranks:
    """This process's place among all."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_target_ranks: int = 0
    """Ranks 0 .. n - 1 that run the target only; 0 when colocated."""
    drafters: Any = None
    """Process group of the drafter ranks, None in a single process."""
    control: Any = None
    """Gloo process group of all ranks, None in a single process."""

    @property
    def runs_target(self) -> bool:
        """Whether this rank holds the target."""
        return self.num_target_ranks == 0 or self.rank < self.num_target_ranks

    @property
    def trains(self) -> bool:
        """Whether this rank holds (a share of) the drafter."""
        return self.rank >= self.num_target_ranks

    @property
    def num_drafters(self) -> int:
        """Ranks that train."""
        return self.world - self.num_target_ranks

    @property
    def drafter_number(self) -> int:
        """0-based number of this rank among those that train."""
        return self.rank - self.num_target_ranks

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and speaks to the person: the first that trains."""
        return self.rank == self.num_target_ranks

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of `tensor` over the drafter ranks, in place."""
        if self.drafters is not None:
            dist.all_reduce(tensor, group=self.drafters)
        return tensor

    def gather(self, value: Any) -> list[Any]:
        """Return the values (small, picklable) of all drafter ranks, in order of rank."""
        if self.drafters is None:
            return [value]
        gathered: list[Any] = [None] * self.num_drafters
        dist.all_gather_object(gathered, value, group=self.drafters)
        return gathered

    def wait_for_all(self) -> None:
        """Wait until every rank is here."""
        if self.control is not None:
            dist.barrier(group=self.control)


class StopVote:
    """Agreement on when to stop: any rank may ask, all stop before the same step.

    A rank votes as a step begins and learns the outcome as the next begins. The vote travels meanwhile, so target ranks may run
    one step ahead of the drafter ranks and nobody waits for the slowest twice.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._vote = torch.zeros(1)
        self._pending: Any = None

    def stops(self, wanted: bool) -> bool:
        """Vote at the beginning of a step; return whether the vote of the step before was to stop."""
        if self._ranks.control is None:
            return wanted
        if self._pending is not None:
            self._pending.wait()
            if self._vote.item() > 0:
                return True
        self._vote = torch.tensor([float(wanted)])
        self._pending = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._ranks.control, async_op=True)
        return False


@contextmanager
def gradients_wait(module: nn.Module, wait: bool) -> Iterator[None]:
    """Hold back the exchange of gradients in all but the last micro-batch of a step."""
    if wait and isinstance(module, nn.parallel.DistributedDataParallel):
        with module.no_sync():
            yield
    else:
        yield


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as a whole on the CPU, whatever ranks it is sharded over; all of them must call it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor as `like` is: on its device, and this rank's shard where it is sharded."""
    if isinstance(like, DTensor):
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor.to(like.device)


def wrap(drafter: nn.Module, ranks: Ranks, placement: PlacementSettings) -> nn.Module:
    """Return the module to call for the drafter's forward pass: itself, or with its gradients averaged over drafter ranks."""
    if ranks.drafters is None:
        return drafter
    return nn.parallel.DistributedDataParallel(drafter, process_group=ranks.drafters, broadcast_buffers=False)

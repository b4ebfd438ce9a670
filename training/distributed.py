"""Ranks: who runs the target, who trains the drafter, and how they agree.

One process is the plain case of many: everything here works without torch.distributed as well. In split placement the first
ranks run the target only; drafter ranks form a group of their own, over which gradients and sums are reduced. What ranks must
agree on (to stop, for example) goes over gloo, so it never waits for a GPU.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from training.recipe import PlacementSettings, Recipe

TIMEOUT = datetime.timedelta(minutes=30)
"""How long a rank waits for the others: longer than the slowest load of a target or write of a checkpoint."""


@dataclass(frozen=True)
class Ranks:
    """This process's place among all."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_targets: int = 0
    """Ranks 0 .. n - 1 that run the target only; 0 when colocated."""
    drafters: Any = None
    """Process group of the drafter ranks, None in a single process."""
    control: Any = None
    """Gloo process group of all ranks, None in a single process."""

    @property
    def trains(self) -> bool:
        """Whether this rank holds (a share of) the drafter."""
        return self.rank >= self.num_targets

    @property
    def num_drafters(self) -> int:
        """Ranks that train."""
        return self.world - self.num_targets

    @property
    def drafter_number(self) -> int:
        """0-based number of this rank among those that train."""
        return self.rank - self.num_targets

    @property
    def leads(self) -> bool:
        """Whether this rank writes files and speaks to the person: the first that trains."""
        return self.rank == self.num_targets

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

    def from_rank(self, source: int, value: Any) -> Any:
        """Return one rank's value (small, picklable) on every rank."""
        if self.control is None:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self.control)
        return box[0]

    def wait_for_all(self) -> None:
        """Wait until every rank is here."""
        if self.control is not None:
            dist.barrier(group=self.control)


def num_target_ranks(placement: PlacementSettings) -> int:
    """Return how many ranks run the target only."""
    return placement.target_ranks if placement.mode == "split" else 0


def check_world(recipe: Recipe, world: int) -> None:
    """Check that a recipe can run on `world` processes.

    Raises:
        ValueError: nobody would train, or a step's micro-batches cannot be shared out evenly.
    """
    drafters = world - num_target_ranks(recipe.placement)
    if drafters < 1:
        raise ValueError(
            f"{world} processes, placement.target_ranks {recipe.placement.target_ranks}: none is left to train; "
            "split placement needs more processes than target ranks"
        )
    if recipe.batches.per_step % drafters:
        raise ValueError(
            f"{drafters} drafter ranks cannot share batches.per_step {recipe.batches.per_step} evenly; "
            f"make it a multiple of {drafters}"
        )


@contextmanager
def joined(recipe: Recipe, rank: int, world: int, local_rank: int, init_method: str) -> Iterator[Ranks]:
    """Join the other processes; yield this one's place, and leave in good order unless something is raised."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=world, timeout=TIMEOUT)
    num_targets = num_target_ranks(recipe.placement)
    ranks = Ranks(
        rank=rank,
        world=world,
        device=device,
        num_targets=num_targets,
        drafters=dist.new_group(list(range(num_targets, world))),
        control=dist.new_group(backend="gloo"),
    )
    yield ranks
    ranks.wait_for_all()
    dist.destroy_process_group()


class StopVote:
    """Agreement on when to stop: any rank may ask, all stop before the same step.

    A rank votes as a step begins and learns the outcome as the next one begins. The vote travels meanwhile, so target ranks may
    run one step ahead of the drafter ranks and nobody waits for the slowest twice.
    """

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._vote = torch.zeros(1)
        self._pending: Any = None

    def stops(self, wanted: bool) -> bool:
        """Vote at the beginning of a step; return whether the vote of the step before was to stop."""
        if self._ranks.control is None:
            return wanted
        if self._settled() > 0:
            return True
        self._vote = torch.tensor([float(wanted)])
        self._pending = dist.all_reduce(self._vote, op=dist.ReduceOp.MAX, group=self._ranks.control, async_op=True)
        return False

    def close(self) -> None:
        """Wait for the vote that is still under way."""
        self._settled()

    def _settled(self) -> float:
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
        return float(self._vote)


def wrap(drafter: nn.Module, ranks: Ranks, placement: PlacementSettings, dtype: torch.dtype) -> nn.Module:
    """Return the module to call for the drafter's forward pass: itself, or with its gradients averaged over drafter ranks.

    FSDP shards the drafter's parameters in place, so optimisers are built after this. The drafter is one unit: gathered, it is a
    few GB in bfloat16, and what must be shared out are the float32 masters and moments.
    """
    if ranks.drafters is None:
        return drafter
    if placement.shard == "fsdp":
        mesh = DeviceMesh.from_group(ranks.drafters, ranks.device.type)
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
        fully_shard(drafter, mesh=mesh, mp_policy=policy)
        return drafter
    return nn.parallel.DistributedDataParallel(drafter, process_group=ranks.drafters, broadcast_buffers=False)


@contextmanager
def gradients_wait(module: nn.Module, wait: bool) -> Iterator[None]:
    """Hold back the exchange of gradients in all but the last micro-batch of a step."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(not wait)
    if wait and isinstance(module, nn.parallel.DistributedDataParallel):
        with module.no_sync():
            yield
    else:
        yield


@contextmanager
def gathered(drafter: nn.Module) -> Iterator[None]:
    """Hold the drafter's parameters whole on every rank, so that its methods can be called freely."""
    if not isinstance(drafter, FSDPModule):
        yield
        return
    drafter.unshard()
    try:
        yield
    finally:
        drafter.reshard()


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as a whole on the CPU, whatever ranks it is sharded over; all of them must call it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor as `like` is: on its device, and this rank's shard where it is sharded."""
    if isinstance(like, DTensor):
        return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
    return tensor.to(like.device)

"""Several replicas that serve one model: least in flight first, conversations stay, the lost are looked for.

What a replica is (a server, an actor on another host) and how it is brought back is the engine's affair.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from datagen.engines import EngineDownError

_MOST_SESSIONS = 1 << 16
"""Conversations whose replica is remembered; long before so many are under way the first ones are over."""


@dataclass(eq=False)
class Replica:
    """One of several that serve the same model."""

    num_in_flight: int = field(default=0, init=False)
    is_up: bool = field(default=False, init=False)


AnyReplica = TypeVar("AnyReplica", bound=Replica)


class Pool(Generic[AnyReplica]):
    """Chooses a replica for each request, and looks for those that were lost."""

    def __init__(
        self, replicas: list[AnyReplica], revive: Callable[[AnyReplica], Awaitable[bool]], pause_s: float
    ) -> None:
        """Args: `revive` returns whether a replica serves (again); it is asked every `pause_s` seconds for a lost one."""
        self.replicas = replicas
        self._revive = revive
        self._pause_s = pause_s
        self._homes: OrderedDict[str, AnyReplica] = OrderedDict()
        self._searches: dict[AnyReplica, asyncio.Task[None]] = {}

    @property
    def num_up(self) -> int:
        """Replicas that serve."""
        return sum(replica.is_up for replica in self.replicas)

    def choose(self, session: str) -> AnyReplica:
        """Return the replica that has this conversation's earlier turns, or the one with the least to do.

        Raises:
            EngineDownError: none is up.
        """
        home = self._homes.get(session)
        if home is None or not home.is_up:
            up = [replica for replica in self.replicas if replica.is_up]
            if not up:
                raise EngineDownError("no replica answers")
            home = min(up, key=lambda replica: replica.num_in_flight)
            self._homes[session] = home
            if len(self._homes) > _MOST_SESSIONS:
                self._homes.popitem(last=False)
        return home

    def lost(self, replica: AnyReplica) -> None:
        """Send a replica no more requests until it serves again."""
        replica.is_up = False
        if replica not in self._searches:
            search = asyncio.create_task(self._look_for(replica))
            self._searches[replica] = search
            search.add_done_callback(lambda _: self._searches.pop(replica, None))

    async def any_serves(self) -> bool:
        """Ask every replica now, and return whether one serves."""
        serve = await asyncio.gather(*(self._revive(replica) for replica in self.replicas))
        for replica, serves in zip(self.replicas, serve, strict=True):
            replica.is_up = serves
        return any(serve)

    def close(self) -> None:
        """Look for nobody any more."""
        for search in list(self._searches.values()):
            search.cancel()

    async def _look_for(self, replica: AnyReplica) -> None:
        while not replica.is_up:
            await asyncio.sleep(self._pause_s)
            if not replica.is_up:
                replica.is_up = await self._revive(replica)

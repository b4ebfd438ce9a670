"""Engines on any hosts of a Ray cluster: one actor per engine, requests from here, answers journalled here.

Each actor holds a whole engine of its own (vLLM with its tensor parallelism, say), so they share nothing and one that
dies takes only its requests in flight with it: those go to the others, and it is started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from datagen.engines import CapacityError, Engine, EngineDownError, Generation, Request, RowError, TransientError
from datagen.engines.pool import Pool, Replica


class RayOptions(BaseModel):
    """Which engines run where."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    engine: Literal["vllm", "echo"] = "vllm"
    """What each actor holds."""
    replicas: int = Field(default=1, ge=1)
    """How many actors."""
    num_gpus: float = Field(default=1.0, ge=0)
    """GPUs that Ray reserves for each; as many as its tensor and pipeline parallelism need."""
    num_cpus: float = Field(default=1.0, ge=0)
    """CPU cores that Ray reserves for each."""
    address: str | None = None
    """The cluster; None joins the one that RAY_ADDRESS names, or starts one on this machine."""
    recheck_s: float = Field(default=10.0, gt=0)
    """Pause before a lost actor is started anew."""


@dataclass(eq=False)
class Actor(Replica):
    """One actor."""

    handle: Any = None


class RayEngine:
    """See the module."""

    def __init__(self, options: RayOptions, build: Callable[[], Engine]) -> None:
        """Args: `build` makes an engine inside each actor; it travels there by pickle."""
        self.options = options
        self._build = build
        self._pool = Pool([Actor() for _ in range(options.replicas)], self._revive, options.recheck_s)
        self._per_actor = 1
        self._described: dict[str, Any] = {}
        self._is_ours = False

    @property
    def capacity(self) -> int:
        """Requests that may be in flight at once, over the actors that are up."""
        return max(1, self._pool.num_up) * self._per_actor

    async def start(self) -> None:
        """Join or start the cluster, and start every actor's engine.

        Raises:
            ValueError: Ray is not installed, or an engine does not start; says what it said.
        """
        try:
            import ray
        except ImportError as error:
            raise ValueError("`--engine ray` needs Ray: install draftmill[ray]") from error
        if not ray.is_initialized():
            ray.init(address=self.options.address, log_to_driver=False, include_dashboard=False)
            self._is_ours = True
        await asyncio.gather(*(self._launch(actor) for actor in self._pool.replicas))
        self._described = await self._pool.replicas[0].handle.describe.remote()

    async def generate(self, request: Request) -> Generation:
        """Answer one request; cancelling it cancels it in its actor."""
        import ray

        while True:
            actor = self._pool.choose(request.session)
            actor.num_in_flight += 1
            reference = actor.handle.generate.remote(request)
            try:
                answer = await reference
            except ray.exceptions.RayActorError:
                # Not this request's fault: another actor may have it at once.
                self._pool.lost(actor)
                continue
            except asyncio.CancelledError:
                ray.cancel(reference)
                raise
            finally:
                actor.num_in_flight -= 1
            if isinstance(answer, EngineDownError):
                self._pool.lost(actor)
            elif isinstance(answer, Exception):
                raise answer
            else:
                return answer

    async def healthy(self) -> bool:
        """Return whether any actor serves; dead ones are started anew."""
        return await self._pool.any_serves()

    def describe(self) -> dict[str, Any]:
        """Return how many actors there are, and what each holds."""
        return {"engine": "ray", "replicas": self.options.replicas, "of": self._described}

    async def close(self) -> None:
        """Stop the actors, and the cluster where this run started it."""
        import ray

        self._pool.close()
        for actor in self._pool.replicas:
            if actor.handle is not None:
                ray.kill(actor.handle)
        if self._is_ours:
            ray.shutdown()

    async def _launch(self, actor: Actor) -> None:
        import ray

        remote = ray.remote(num_gpus=self.options.num_gpus, num_cpus=self.options.num_cpus)(_Holder)
        # As many calls at once as it is sent: the holder's engine queues, not Ray.
        actor.handle = remote.options(max_concurrency=1 << 16).remote(self._build)
        try:
            self._per_actor = await actor.handle.start.remote()
        except ray.exceptions.RayTaskError as error:
            raise ValueError(f"an engine did not start: {error.cause}") from error
        except ray.exceptions.RayActorError as error:
            raise ValueError(f"an engine's actor died as it started: {error}") from error
        actor.is_up = True

    async def _revive(self, actor: Actor) -> bool:
        import ray

        try:
            return await actor.handle.healthy.remote()
        except ray.exceptions.RayActorError:
            pass
        try:
            await self._launch(actor)
        except ValueError:
            return False
        return True


class _Holder:
    """Lives in the actor, and holds its engine."""

    def __init__(self, build: Callable[[], Engine]) -> None:
        self._engine = build()

    async def start(self) -> int:
        await self._engine.start()
        return self._engine.capacity

    async def generate(self, request: Request) -> Generation | Exception:
        """Return the answer, or the fault: exceptions lose their type on the way through Ray, values do not."""
        try:
            return await self._engine.generate(request)
        except (TransientError, CapacityError, RowError, EngineDownError) as error:
            return error

    async def healthy(self) -> bool:
        try:
            return await self._engine.healthy()
        except EngineDownError:
            return False

    def describe(self) -> dict[str, Any]:
        return self._engine.describe()

"""One or many servers over HTTP (vLLM, SGLang): token ids in, token ids out, least in flight first.

A conversation stays with the server that has its earlier turns cached. A server that stops answering is taken out and
asked again in the background, its requests go to the others; only when none is left is the engine down. The client sets
no limit on connections and no time limit of its own: the run's deadlines are the ones that count.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from datagen.engines import CapacityError, EngineDownError, Generation, Request, RowError, TransientError, wire
from datagen.engines.pool import Pool, Replica
from datagen.engines.wire import Dialect

KEY_VARIABLES = ("DRAFTMILL_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the servers' key; the first that is set counts."""


class HttpOptions(BaseModel):
    """How servers are spoken to."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    concurrency: int = Field(default=256, ge=1)
    """Requests in flight per server, at most; what a server refuses lowers it."""
    connect_s: float = Field(default=10.0, gt=0)
    """Time to connect."""
    probe_s: float = Field(default=60.0, gt=0)
    """Time in which a server must generate one token, at the start and when it was lost."""
    recheck_s: float = Field(default=10.0, gt=0)
    """Pause between two looks at a server that is out."""


@dataclass(eq=False)
class Server(Replica):
    """One endpoint."""

    url: str
    dialect: Dialect = wire.DIALECTS[0]
    model: str = ""
    check: asyncio.Task[bool] | None = None
    """The look at it that is under way."""


class _LostConnectionError(TransientError):
    """The connection broke before the answer was whole."""


class HttpEngine:
    """See the module."""

    def __init__(self, endpoints: tuple[str, ...], model: str, context_length: int, options: HttpOptions) -> None:
        """Args: `model` as the target names it; `context_length` in tokens, which every server must take."""
        self.options = options
        self._servers = [Server(url.rstrip("/").removesuffix("/v1")) for url in endpoints]
        self._pool = Pool(self._servers, self._answers, options.recheck_s)
        self._model = model
        self._context_length = context_length
        self._client: Any = None

    @property
    def capacity(self) -> int:
        """Requests that may be in flight at once, over the servers that are up."""
        return max(1, self._pool.num_up) * self.options.concurrency

    async def start(self) -> None:
        """Find out how each server is spoken to and prove that it returns the token ids it sampled.

        Servers that cannot be reached are looked for again later, as long as one can.

        Raises:
            ValueError: none can be reached, or one serves something else than this target needs.
        """
        self._client = _client(self.options)
        problems = []
        for server in self._servers:
            try:
                await self._meet(server)
            except (EngineDownError, TransientError, CapacityError, TimeoutError) as error:
                problems.append(f"{server.url}: {error or 'no answer'}")
                self._pool.lost(server)
        if not self._pool.num_up:
            raise ValueError(f"no server answers: {'; '.join(problems)}")

    async def generate(self, request: Request) -> Generation:
        """Answer one request; cancelling it closes the connection, on which servers abort."""
        while True:
            server = self._pool.choose(request.session)
            server.num_in_flight += 1
            try:
                return await self._post(server, request)
            except EngineDownError:
                # Not this request's fault: another server may have it at once.
                self._pool.lost(server)
            except _LostConnectionError:
                # One request's bad luck, or the end of the server? All that lost theirs wait for one look at it.
                server.check = server.check or asyncio.create_task(self._answers(server))
                if not await asyncio.shield(server.check):
                    self._pool.lost(server)
                server.check = None
                raise
            finally:
                server.num_in_flight -= 1

    async def healthy(self) -> bool:
        """Return whether any server generates a token."""
        return await self._pool.any_serves()

    def describe(self) -> dict[str, Any]:
        """Return the servers and what they say they serve."""
        servers = [
            {"url": server.url, "model": server.model, "dialect": server.dialect.name} for server in self._servers
        ]
        return {"engine": "http", "servers": servers}

    async def close(self) -> None:
        """Close every connection."""
        self._pool.close()
        if self._client is not None:
            await self._client.close()

    async def _post(self, server: Server, request: Request) -> Generation:
        import aiohttp

        body = orjson.dumps(server.dialect.payload(request, server.model))
        try:
            async with self._client.post(server.url + server.dialect.path, data=body) as response:
                answer = await response.read()
                if response.status != 200:
                    raise wire.fault(response.status, answer, response.headers.get("Retry-After"), time.time())
        except aiohttp.ClientConnectorError as error:
            raise EngineDownError(f"{server.url}: {error}") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _LostConnectionError(f"{server.url}: {type(error).__name__} {error}") from error
        return wire.parse_body(server.dialect, answer)

    async def _meet(self, server: Server) -> None:
        """Learn a server's model and dialect. Raises ValueError where it is of no use."""
        await self._learn_model(server)
        refused = []
        for dialect in wire.DIALECTS:
            server.dialect = dialect
            try:
                async with asyncio.timeout(self.options.probe_s):
                    await self._post(server, _probe())
            except (RowError, TransientError, EngineDownError) as error:
                refused.append(f"{dialect.path}: {error}")
            else:
                server.is_up = True
                return
        raise ValueError(
            f"{server.url} does not return token ids ({'; '.join(refused)}); it must be a vLLM or SGLang server "
            "new enough for `return_token_ids` or `/generate`"
        )

    async def _learn_model(self, server: Server) -> None:
        import aiohttp

        try:
            async with asyncio.timeout(self.options.probe_s), self._client.get(f"{server.url}/v1/models") as response:
                body = await response.read()
                if response.status != 200:
                    raise wire.fault(response.status, body, response.headers.get("Retry-After"), time.time())
        except (aiohttp.ClientError, ConnectionError) as error:
            raise EngineDownError(f"{type(error).__name__} {error}") from error
        models = _models(server.url, body)
        named = [model for model in models if self._model in (model["id"], model.get("root"))]
        if not named and len(models) != 1:
            names = ", ".join(str(model["id"]) for model in models)
            raise ValueError(f"{server.url} serves {names or 'no model'}; the manifest's target is {self._model}")
        chosen = (named or models)[0]
        longest = chosen.get("max_model_len")
        if isinstance(longest, int) and longest < self._context_length:
            raise ValueError(
                f"{server.url} takes {longest} tokens, the target {self._context_length}; "
                f"set `target.max_model_len: {longest}` or serve it with a longer context"
            )
        server.model = chosen["id"]

    async def _answers(self, server: Server) -> bool:
        """Return whether a server generates one token in time."""
        try:
            async with asyncio.timeout(self.options.probe_s):
                if not server.model:
                    await self._meet(server)
                else:
                    await self._post(server, _probe())
        except CapacityError:
            return True
        except (TransientError, EngineDownError, RowError, TimeoutError, ValueError):
            return False
        return True


def _client(options: HttpOptions) -> Any:
    try:
        import aiohttp
    except ImportError as error:
        raise ValueError("`--engine http` needs aiohttp: install draftmill[http]") from error
    key = next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), None)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=options.connect_s),
        headers=headers,
    )


def _probe() -> Request:
    return Request("probe", [1], wire.PROBE, seed=0, session="probe")


def _models(url: str, body: bytes) -> list[dict[str, Any]]:
    try:
        models = orjson.loads(body)["data"]
        return [{"id": str(model["id"]), **model} for model in models]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{url}/v1/models is not an OpenAI-compatible answer ({error})") from error

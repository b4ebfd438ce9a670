"""Servers of token ids, one as vLLM and one as SGLang, that misbehave on request. What they answer is the echo engine's."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import TracebackType
from typing import Any

from aiohttp import web

from datagen.engines import Request
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.engines.wire import PROBE
from manifests.schema import Sampling

MODES = (
    "never",
    "reset",
    "429",
    "500",
    "503",
    "drip",
    "bad json",
    "no token ids",
    "null text",
    "no finish reason",
)
"""Ways to fail that a later attempt may not meet."""

HARMLESS = ("no usage", "reasoning", "reasoning_content", "empty")
"""Answers that are odd and still answers."""

_ECHOED = {"temperature", "top_p", "top_k", "min_p", "max_tokens", "repetition_penalty"}
_SGLANG_ONLY = {"max_new_tokens", "stop", "sampling_seed", "presence_penalty", "frequency_penalty"}


class FakeServer:
    """Serves on a port of its own choosing within the running loop.

    `mode` is how it treats a prompt's first `times` requests (probes aside, unless `probes` says so too).
    """

    def __init__(self, mode: str = "", times: int = 1 << 30, probes: bool = False, max_model_len: int = 4096) -> None:
        self.mode = mode
        self.times = times
        self.probes = probes
        self.max_model_len = max_model_len
        self.num_answered = 0
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.port = 0
        self._echo = EchoEngine(EchoOptions(tokens=32))
        self._runner: web.AppRunner | None = None
        self._gone = asyncio.Event()

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeServer:
        await self.up()
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.down()

    async def up(self) -> None:
        """Start serving, on the same port as before."""
        self._gone.clear()
        application = web.Application()
        application.router.add_get("/v1/models", self._models)
        application.router.add_post("/v1/completions", self._complete)
        self._add_routes(application)
        self._runner = web.AppRunner(application, shutdown_timeout=0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def down(self) -> None:
        """Stop at once, breaking every connection."""
        self._gone.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _add_routes(self, application: web.Application) -> None:
        """Add what a kind of server has besides."""

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "served", "max_model_len": self.max_model_len}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        prompt = tuple(asked["prompt"])
        is_probe = asked["max_tokens"] == PROBE.max_tokens
        self.seen[prompt] += 1
        if self.mode in MODES and self.seen[prompt] <= self.times and (self.probes or not is_probe):
            return await self._misbehave(request, await self._answer(asked))
        self.num_answered += 1
        answer = await self._answer(asked)
        return web.json_response(answer if is_probe else self._oddly(answer))

    async def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        sampling = Sampling(**{name: asked[name] for name in _ECHOED})
        # The echo engine answers by id; the fake knows only the prompt.
        generation = await self._echo.generate(Request(str(asked["prompt"]), asked["prompt"], sampling, 0, ""))
        choice = {
            "text": generation.text,
            "token_ids": generation.token_ids,
            "finish_reason": generation.finish_reason,
        }
        return {"choices": [choice], "usage": {"completion_tokens": len(generation.token_ids)}}

    def _oddly(self, answer: dict[str, Any]) -> dict[str, Any]:
        choice = answer["choices"][0]
        if self.mode == "no usage":
            del answer["usage"]
        elif self.mode == "empty":
            choice |= {"text": "", "token_ids": [2]}
        elif self.mode in ("reasoning", "reasoning_content"):
            choice[self.mode] = "because"
        return answer

    async def _misbehave(self, request: web.Request, answer: dict[str, Any]) -> web.StreamResponse:
        choice = answer["choices"][0]
        match self.mode:
            case "never":
                await self._gone.wait()
            case "reset":
                assert request.transport is not None
                request.transport.abort()
            case "drip":
                return await self._drip(request)
            case "429":
                return web.Response(status=429, text="too many requests", headers={"Retry-After": "0.05"})
            case "500" | "503":
                return web.Response(status=int(self.mode), text="overloaded")
            case "bad json":
                return web.Response(text='{"choices": [{"te')
            case "no token ids":
                del choice["token_ids"]
            case "null text":
                choice["text"] = None
            case "no finish reason":
                choice["finish_reason"] = None
        return web.json_response(answer)

    async def _drip(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not self._gone.is_set():
            await response.write(b" ")
            await asyncio.sleep(0.05)
        return response


class FakeSglang(FakeServer):
    """Its completions route returns no token ids; its own takes what SGLang's `SamplingParams` takes, and refuses what that refuses."""

    def _add_routes(self, application: web.Application) -> None:
        application.router.add_post("/generate", self._generate)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        answer = await self._answer(asked)
        del answer["choices"][0]["token_ids"]
        return web.json_response(answer)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        sampling = asked["sampling_params"]
        unknown = set(sampling) - (_ECHOED - {"max_tokens"} | _SGLANG_ONLY)
        if unknown or sampling["top_k"] == 0:
            return web.json_response(
                {"error": {"message": f"top_k {sampling['top_k']}, unknown {unknown}"}}, status=400
            )
        self.seen[tuple(asked["input_ids"])] += 1
        self.num_answered += 1
        as_vllm = sampling | {"prompt": asked["input_ids"], "max_tokens": sampling["max_new_tokens"]}
        choice = (await self._answer(as_vllm))["choices"][0]
        finish: dict[str, Any] = {"type": choice["finish_reason"]}
        if self.mode == "abort" and sampling["max_new_tokens"] != PROBE.max_tokens and self.num_answered % 2:
            finish = {"type": "abort", "message": "out of memory", "status_code": 500}
        meta = {"finish_reason": finish, "completion_tokens": len(choice["token_ids"])}
        return web.json_response({"text": choice["text"], "output_ids": choice["token_ids"], "meta_info": meta})

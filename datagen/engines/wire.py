"""What goes over the wire to a server of token ids, and what comes back: vLLM's completions route and SGLang's own.

Both take a prompt as token ids and return the sampled ids, so nothing is tokenised twice. Everything the server could
otherwise fill in from the model's `generation_config.json` is sent. Pure functions: no connection is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from datagen.engines import CapacityError, EngineDownError, Generation, Request, RowError, TransientError
from manifests.schema import Sampling

_MOST_SAID = 300
"""Characters of a server's error message that are kept."""


@dataclass(frozen=True)
class Dialect:
    """How one kind of server is spoken to."""

    name: str
    path: str
    payload: Callable[[Request, str], dict[str, Any]]
    """Request and model name to the JSON body."""
    parse: Callable[[dict[str, Any]], Generation]
    """JSON answer to a generation; raises KeyError, IndexError, TypeError or ValueError where it is not what it should be."""


def parse_body(dialect: Dialect, body: bytes) -> Generation:
    """Return the generation in a successful answer.

    Raises:
        TransientError: it is no JSON, or lacks token ids, text or an end.
    """
    try:
        generation = dialect.parse(orjson.loads(body))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise TransientError(f"not an answer ({type(error).__name__} {error}): {_said(body)}") from error
    if generation.finish_reason in ("abort", "error", "None"):
        raise TransientError(f"the server ended the request with {generation.finish_reason!r}")
    return generation


def fault(status: int, body: bytes, retry_after: str | None, now_unix_s: float) -> Exception:
    """Return what an HTTP error means for the run."""
    message = f"HTTP {status}: {_said(body)}"
    if status in (429, 503):
        return CapacityError(message, _retry_after_s(retry_after, now_unix_s))
    if status in (400, 413, 422):
        return RowError(message)
    if status in (401, 403, 404):
        return EngineDownError(message)
    return TransientError(message)


def _vllm_payload(request: Request, model: str) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "model": model,
        "prompt": request.prompt_token_ids,
        "return_token_ids": True,
        "add_special_tokens": False,
        "seed": request.seed if sampling.temperature > 0 else None,
        **sampling.model_dump(exclude={"stop"}),
        "stop": list(sampling.stop),
    }


def _vllm_parse(answer: dict[str, Any]) -> Generation:
    choice = answer["choices"][0]
    reasoning = choice.get("reasoning", choice.get("reasoning_content"))
    text = choice["text"] if reasoning is None else choice.get("text") or ""
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}")
    return Generation(_token_ids(choice, "token_ids"), text, str(choice["finish_reason"]), reasoning)


def _sglang_payload(request: Request, model: str) -> dict[str, Any]:
    sampling = request.sampling
    parameters: dict[str, Any] = sampling.model_dump(exclude={"stop", "max_tokens"})
    # 0 considers all tokens for vLLM and is refused by SGLang, which says -1.
    parameters |= {"max_new_tokens": sampling.max_tokens, "stop": list(sampling.stop), "top_k": sampling.top_k or -1}
    if sampling.temperature > 0:
        parameters["sampling_seed"] = request.seed
    return {"input_ids": request.prompt_token_ids, "sampling_params": parameters}


def _sglang_parse(answer: dict[str, Any]) -> Generation:
    finish, text = answer["meta_info"]["finish_reason"], answer["text"]
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}")
    return Generation(_token_ids(answer, "output_ids"), text, str(finish["type"]))


def _token_ids(holder: dict[str, Any], key: str) -> list[int]:
    token_ids = holder[key]
    if not isinstance(token_ids, list) or not all(isinstance(token, int) for token in token_ids):
        raise TypeError(f"{key} is not a list of integers")
    return token_ids


def _retry_after_s(header: str | None, now_unix_s: float) -> float | None:
    """Read Retry-After: seconds, or a date (RFC 9110, section 10.2.3)."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - now_unix_s)
    except ValueError:
        return None


def _said(body: bytes) -> str:
    return " ".join(body[:_MOST_SAID].decode("utf-8", "replace").split())


DIALECTS = (
    Dialect("vllm", "/v1/completions", _vllm_payload, _vllm_parse),
    Dialect("sglang", "/generate", _sglang_payload, _sglang_parse),
)
"""In the order in which a server is tried."""

PROBE = Sampling(temperature=0, max_tokens=1)
"""The smallest generation that proves a server well."""

"""Measuring a served target and drafter, by what the server itself counts.

vLLM counts drafts, accepted tokens and accepted tokens by position in /metrics; SGLang reports verifications with every
answer. Prompts are sent one at a time and the counters read before and after each, so figures belong to a prompt, as they do
when decoding here. Somebody else's requests in between would be counted as ours: then the measurement stops.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from training.acceptance import PromptRounds
from training.decode import Limits
from training.prompts import Prompt

TIMEOUT_S = 600.0
"""Longest wait for one answer."""

SETTLE_S = 10.0
"""Longest wait for the counters to have heard of an answer."""

DRAFTS, ACCEPTED, BY_POSITION, ANSWERED = (
    "vllm:spec_decode_num_drafts",
    "vllm:spec_decode_num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "vllm:request_success",
)
"""vLLM's counters; each ends in `_total` in the text format."""


@dataclass(frozen=True)
class Served:
    """One prompt answered by the server."""

    rounds: PromptRounds
    by_round: bool
    """Whether the rounds are known one by one; SGLang tells their number and sum only."""
    num_tokens: int
    seconds: float


class Server:
    """A vLLM or SGLang server."""

    def __init__(self, url: str) -> None:
        """Find out which engine answers at a URL and which model it serves.

        Raises:
            ValueError: nothing answers, or no drafter is at work there.
        """
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"--server {url}: expected http://HOST:PORT")
        self.model = self._model()
        counters = self._counters()
        self.num_slots = len(_positions(counters)) or None
        """Proposals of a round, None where the server does not say."""
        if any(name.startswith("vllm:") for name, _ in counters):
            self.engine = "vllm"
            if not any(name == DRAFTS for name, _ in counters):
                raise ValueError(f"{self.url} serves {self.model} without a drafter: its /metrics counts no drafts")
        else:
            self.engine = "sglang"

    def ask(self, prompt: Prompt, limits: Limits, seed: int) -> Served:
        """Send a prompt as token ids and return what its rounds gained.

        Raises:
            ValueError: the server refuses, falls silent, or answers others as well.
        """
        return self._ask_vllm(prompt, limits, seed) if self.engine == "vllm" else self._ask_sglang(prompt, limits)

    def _ask_vllm(self, prompt: Prompt, limits: Limits, seed: int) -> Served:
        before, started = self._counters(), time.perf_counter()
        answer = self._call(
            "/v1/completions",
            {
                "model": self.model,
                "prompt": prompt.token_ids,
                "max_tokens": limits.max_new_tokens,
                "temperature": limits.temperature,
                "seed": seed,
            },
        )
        seconds = time.perf_counter() - started
        after = self._settled(before)
        drafts, accepted = (_sum(after, name) - _sum(before, name) for name in (DRAFTS, ACCEPTED))
        at_least = [after[key] - before.get(key, 0.0) for key in _positions(after)]
        reached = [drafts, *at_least, 0.0]
        counts = [int(one - other) for one, other in zip(reached, reached[1:], strict=False)]
        rounds = [accepted for accepted, count in enumerate(counts) for _ in range(count)]
        num_tokens = int(answer["usage"]["completion_tokens"])
        return Served(_ended(rounds, num_tokens), True, num_tokens, seconds)

    def _ask_sglang(self, prompt: Prompt, limits: Limits) -> Served:
        started = time.perf_counter()
        answer = self._call(
            "/generate",
            {
                "input_ids": prompt.token_ids,
                "sampling_params": {"max_new_tokens": limits.max_new_tokens, "temperature": limits.temperature},
            },
        )
        seconds = time.perf_counter() - started
        found = answer["meta_info"]
        if "spec_verify_ct" not in found:
            raise ValueError(f"{self.url} answers without a drafter: no spec_verify_ct in its meta_info")
        rounds, tokens = int(found["spec_verify_ct"]), int(found["completion_tokens"])
        even = [tokens // max(1, rounds) - 1] * rounds
        return Served(PromptRounds(tokens - 1, even, False), False, tokens, seconds)

    def _settled(self, before: dict[tuple[str, str], float]) -> dict[tuple[str, str], float]:
        """Return the counters once they count the answer that was just given."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            after = self._counters()
            answered = _sum(after, ANSWERED) - _sum(before, ANSWERED)
            if answered == 1:
                return after
            if answered > 1:
                raise ValueError(
                    f"{self.url} answered {answered - 1:.0f} requests of others meanwhile, which its counters mix with ours; "
                    "measure a server that nobody else uses"
                )
            if time.monotonic() > deadline:
                raise ValueError(f"{self.url}: /metrics did not count our request within {SETTLE_S:g} s")
            time.sleep(0.05)

    def _model(self) -> str:
        models = self._call("/v1/models")["data"]
        if not models:
            raise ValueError(f"{self.url} serves no model")
        return models[0]["id"]

    def _counters(self) -> dict[tuple[str, str], float]:
        return dict(read_counters(self._fetch("/metrics", None)))

    def _call(self, path: str, content: dict[str, Any] | None = None) -> Any:
        try:
            return json.loads(self._fetch(path, content))
        except json.JSONDecodeError as error:
            raise ValueError(f"{self.url}{path} does not answer in JSON ({error})") from error

    def _fetch(self, path: str, content: dict[str, Any] | None) -> str:
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
                return reply.read().decode()
        except urllib.error.HTTPError as error:
            if path == "/metrics" and error.code == 404:
                return ""
            said = error.read(200).decode(errors="replace")
            raise ValueError(f"{self.url}{path} answers {error.code}: {' '.join(said.split())}") from error
        except (OSError, TimeoutError) as error:
            raise ValueError(f"nothing answers at {self.url}{path} ({error}); is the server up?") from error


def read_counters(text: str) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield ((name without `_total`, labels), value) of every sample in Prometheus' text format."""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        head, _, value = line.rpartition(" ")
        name, _, labels = head.partition("{")
        yield (name.removesuffix("_total"), labels.rstrip("}")), float(value)


def _ended(rounds: list[int], num_tokens: int) -> PromptRounds:
    """Return a text's rounds without the proposals that vLLM counts as accepted although they lie behind the end of the text.
    A round that was cut has no token of the target's own, as when decoding here.

    The counters do not tell which round was the last; any that accepted as many as are too many may have been, and the longest is
    taken for it. Tau does not depend on that.
    """
    surplus = sum(rounds) + len(rounds) - (num_tokens - 1)
    if surplus <= 0 or max(rounds, default=0) < surplus:
        return PromptRounds(num_tokens - 1, rounds, False)
    *others, last = sorted(rounds)
    return PromptRounds(num_tokens - 1, [*others, last + 1 - surplus], True)


def _sum(counters: dict[tuple[str, str], float], name: str) -> float:
    return sum(value for (found, _), value in counters.items() if found == name)


def _positions(counters: dict[tuple[str, str], float]) -> list[tuple[str, str]]:
    """Return the keys of the counters by position, in order of position."""

    def position(labels: str) -> int:
        return next(
            int(part.partition("=")[2].strip('"')) for part in labels.split(",") if part.startswith("position=")
        )

    keys = [key for key in counters if key[0] == BY_POSITION]
    return sorted(keys, key=lambda key: position(key[1]))

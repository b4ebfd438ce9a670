"""`drafter evaluate --server`: what vLLM and SGLang count becomes the figures that decoding here gives."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.training.asking_inputs import write_set, write_target
from training.acceptance import PromptRounds, acceptance
from training.decode import Limits
from training.evaluation import EvaluateOptions, evaluate
from training.prompts import Prompt
from training.served import Server

ROUNDS = [[2, 0, 3], [1, 1], [0, 0, 0, 3]]
"""Accepted proposals of the answers, in the order in which they are asked for."""


class FakeEngine(ThreadingHTTPServer):
    """Answers as vLLM or SGLang do, with rounds that are known."""

    def __init__(self, engine: str, drafts: bool = True, strangers: int = 0, behind_the_end: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.drafts, self.strangers, self.behind_the_end = engine, drafts, strangers, behind_the_end
        self.asked: list[dict[str, Any]] = []
        self.answered, self.rounds = 0, [5, 5, 5]  # somebody's rounds from before
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metrics(self) -> str:
        lines = [
            "# HELP vllm:request_success_total Count",
            f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {self.answered}.0',
            'vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 0.0',
        ]
        if self.drafts:
            lines += [
                f'vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {len(self.rounds)}.0',
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {sum(self.rounds)}.0',
            ]
            # Out of order, as a text format may be.
            for position in (1, 0, 2, 3, 4):
                count = sum(accepted > position for accepted in self.rounds)
                lines.append(
                    f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{position}"}} {count}.0'
                )
        return "\n".join(lines) + "\n"


class _Handler(BaseHTTPRequestHandler):
    server: FakeEngine

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._reply(json.dumps({"data": [{"id": "m"}]}))
        elif self.path == "/metrics" and self.server.engine == "vllm":
            self._reply(self.server.metrics())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rounds = ROUNDS[len(self.server.asked) % len(ROUNDS)]
        self.server.asked.append(asked)
        self.server.rounds += rounds
        self.server.answered += 1 + self.server.strangers
        tokens = sum(rounds) + len(rounds) + 1 - self.server.behind_the_end
        if self.path == "/v1/completions":
            self._reply(json.dumps({"usage": {"completion_tokens": tokens}}))
        else:
            found = {"completion_tokens": tokens} | ({"spec_verify_ct": len(rounds)} if self.server.drafts else {})
            self._reply(json.dumps({"text": "", "meta_info": found}))

    def _reply(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def vllm() -> Iterator[FakeEngine]:
    engine = FakeEngine("vllm")
    yield engine
    engine.shutdown()


PROMPT, LIMITS = Prompt("p", "code", "s", [1, 2, 3]), Limits(max_new_tokens=9)


def test_vllms_counters_give_the_rounds_of_a_prompt(vllm: FakeEngine) -> None:
    server = Server(vllm.url)
    for rounds in ROUNDS:
        found = server.ask(PROMPT, LIMITS, seed=4)
        assert sorted(found.rounds.accepted) == sorted(rounds)
        assert found.rounds.gained_tokens == sum(rounds) + len(rounds)
    assert vllm.asked[0] == {"model": "m", "prompt": [1, 2, 3], "max_tokens": 9, "temperature": 0.0, "seed": 4}


def test_what_vllm_counts_behind_the_end_of_a_text_is_not_counted_here() -> None:
    engine = FakeEngine("vllm", behind_the_end=2)
    found = Server(engine.url).ask(PROMPT, LIMITS, seed=0)
    engine.shutdown()
    assert found.num_tokens == 7
    assert found.rounds == PromptRounds(gained_tokens=6, accepted=[0, 2, 2], cut=True)


def test_sglangs_answers_give_their_number_and_sum() -> None:
    engine = FakeEngine("sglang")
    server = Server(engine.url)
    found = [server.ask(PROMPT, LIMITS, seed=0) for _ in ROUNDS]
    engine.shutdown()
    assert server.engine == "sglang"
    assert [len(one.rounds.accepted) for one in found] == [3, 2, 4]
    assert acceptance([one.rounds for one in found]).tau == (8 + 4 + 7) / 9


def test_the_command_reports_a_server_as_it_reports_a_drafter(vllm: FakeEngine, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target")
    data = write_set(tmp_path / "set", target)
    report = evaluate(EvaluateOptions(server=vllm.url, data=data, out=tmp_path / "evaluation.json", max_new_tokens=9))
    assert [len(one["prompt"]) for one in vllm.asked] == [6] * 6
    assert report["all"]["tau"] == (8 + 4 + 7) / 9
    assert report["all"]["slot_acceptance"] == pytest.approx([5 / 9, 3 / 5, 2 / 3, 0])
    assert report["conditions"]["drafter"]["num_slots"] == 5
    assert set(report["by_domain"]) == {"code", "math"}
    assert report["lossless"] is None and report["conditions"]["drafter"]["path"].startswith("vllm at http")
    assert (tmp_path / "evaluation.html").read_text().count("<svg") >= 4


def test_requests_of_others_stop_the_measurement() -> None:
    engine = FakeEngine("vllm", strangers=2)
    with pytest.raises(ValueError, match="answered 2 requests of others"):
        Server(engine.url).ask(PROMPT, LIMITS, seed=0)
    engine.shutdown()


def test_a_server_without_a_drafter_and_no_server_at_all_are_told_apart() -> None:
    plain = FakeEngine("vllm", drafts=False)
    with pytest.raises(ValueError, match="without a drafter"):
        Server(plain.url)
    plain.shutdown()
    plain.server_close()
    with pytest.raises(ValueError, match="nothing answers at"):
        Server(plain.url)
    with pytest.raises(ValueError, match="expected http"):
        Server("localhost:8000")

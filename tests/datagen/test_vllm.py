"""The real engine on a real model: in process and behind a server, killed and resumed. vLLM's CPU build runs it anywhere."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from datagen import ledger, shards
from datagen.answers import seed_of
from datagen.engines import Engine, Generation, Request
from datagen.engines.http import HttpEngine, HttpOptions
from datagen.engines.ray import RayEngine, RayOptions
from datagen.engines.vllm import VllmEngine, prepare_environment
from datagen.rendering import Renderer
from datagen.verify import VerifyCommand, verify
from demo.smollm2 import convert, find_gguf
from manifests.schema import Sampling, Target

pytest.importorskip("vllm", reason="needs draftmill[vllm], or draftmill[cpu]")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CONTEXT = 512
SETTINGS = {"enforce_eager": True, "max_num_seqs": 16}
PROMPTS = ["What is the capital of France?", "Count to ten.", "Name a colour.", "Why is the sky blue?"]
GREEDY = Sampling(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return SmolLM2-135M-Instruct in float32."""
    try:
        find_gguf()
    except ValueError as error:
        pytest.skip(str(error))
    return convert(tmp_path_factory.mktemp("model") / "smollm2", "float32")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[str]:
    """Serve the model with vLLM's own server; return its address."""
    prepare_environment()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager", "--no-enable-chunked-prefill"]
    command += ["--max-num-batched-tokens", "4096", "--max-num-seqs", "16"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while not is_ready(url):
            assert process.poll() is None, "the server did not start"
            time.sleep(0.5)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_server_and_the_engine_in_process_sample_the_same_ids(model: Path, server: str) -> None:
    target = Target(model=str(model), dtype="float32", max_model_len=CONTEXT, engine=SETTINGS)
    renderer = Renderer(target)
    over_http = asyncio.run(greedy(HttpEngine((server,), target.model, CONTEXT, HttpOptions()), renderer))
    in_process = asyncio.run(greedy(VllmEngine(target, renderer.model, CONTEXT), renderer))
    assert [answer.token_ids for answer in over_http] == [answer.token_ids for answer in in_process]
    assert [answer.text for answer in over_http] == [answer.text for answer in in_process]
    assert "Paris" in in_process[0].text
    for answer in in_process:
        assert renderer.tokenizer.decode(answer.token_ids, skip_special_tokens=True) == answer.text


def test_an_engine_in_a_ray_actor_samples_the_same_ids(model: Path) -> None:
    pytest.importorskip("ray", reason="needs draftmill[ray]")
    target = Target(model=str(model), dtype="float32", max_model_len=CONTEXT, engine=SETTINGS)
    renderer = Renderer(target)
    build = functools.partial(VllmEngine, target, renderer.model, CONTEXT)
    in_actor = RayEngine(RayOptions(engine="vllm", num_gpus=0), build)
    on_ray = asyncio.run(greedy(in_actor, renderer))
    in_process = asyncio.run(greedy(build(), renderer))
    assert [answer.token_ids for answer in on_ray] == [answer.token_ids for answer in in_process]
    assert in_actor.describe()["of"]["engine"] == "vllm"


@pytest.mark.chaos
def test_a_killed_run_resumes_and_leaves_no_process_behind(model: Path, tmp_path: Path) -> None:
    manifest = write_manifest(model, tmp_path)
    out = tmp_path / "completions_raw"
    command = [sys.executable, "-m", "datagen.cli", "run", "--manifest", str(manifest), "--out", str(out), "--quiet"]
    first = subprocess.Popen(command, start_new_session=True)
    log = out / ledger.HIDDEN / ledger.log_name(0)
    while not (log.exists() and log.stat().st_size) and not shards_of(out):
        assert first.poll() is None
        time.sleep(0.02)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    wait_until_gone(first.pid)
    assert subprocess.run(command, timeout=600).returncode == 0
    found = verify(VerifyCommand(folder=out))
    assert (found.is_sound, found.num_done, found.num_pending) == (True, 48, 0), str(found)


async def greedy(engine: Engine, renderer: Renderer) -> list[Generation]:
    """Return the engine's greedy answers to the prompts."""
    try:
        await engine.start()
        prompts = [renderer.render([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
        requests = [Request(text, ids, GREEDY, seed_of(text), text) for text, ids in zip(PROMPTS, prompts, strict=True)]
        return list(await asyncio.gather(*map(engine.generate, requests)))
    finally:
        await engine.close()


def write_manifest(model: Path, folder: Path) -> Path:
    """Write a manifest of 48 prompts."""
    lines = [shards.encode_row({"prompt": f"Tell me about the number {number}."}) for number in range(48)]
    (folder / "prompts.jsonl").write_bytes(b"".join(lines))
    document: dict[str, Any] = {
        "name": "small",
        "target": {"model": str(model), "dtype": "float32", "max_model_len": CONTEXT, "engine": SETTINGS},
        "sampling": {"temperature": 0.8, "top_p": 0.9, "max_tokens": 32},
        "shard_rows": 16,
        "sources": [
            {
                "name": "a",
                "files": "prompts.jsonl",
                "format": "prompt",
                "column": "prompt",
                "domain": "chat",
                "license": "MIT",
                "count": 48,
            }
        ],
    }
    path = folder / "manifest.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def is_ready(url: str) -> bool:
    """Return whether a server is up."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def shards_of(folder: Path) -> list[Path]:
    """Return what is published."""
    return list(folder.glob("completions_*.jsonl"))


def wait_until_gone(session: int) -> None:
    """Wait until no process of a session lives; the test's time limit is the bound."""
    while any(session_of(entry) == session for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        time.sleep(0.2)


def session_of(entry: Path) -> int | None:
    """Return the session of a process that is neither gone nor a zombie."""
    try:
        fields = (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[3])

"""The four commands, as the README gives them, turn prompts into a measured drafter; every part is the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import datasets
import orjson
import pytest

from manifests.schema import SHIPPED

COMMANDS = Path(sys.executable).parent
DOMAINS = ("code", "math", "science", "reasoning", "chat", "writing", "tool_use", "multilingual")


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    program, *arguments = command.split()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.run(
        [COMMANDS / program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=500
    )


def manifest(target: Path) -> str:
    sources = "\n".join(
        f"  - {{name: {domain}, files: {SHIPPED}/demo_prompts/{domain}.jsonl, format: messages, domain: {domain}, "
        f"license: Apache-2.0, count: {12 if domain == 'code' else 4}}}"
        for domain in DOMAINS
    )
    shares = ", ".join(f"{domain}: 1" for domain in DOMAINS)
    return f"""
name: small
target: {{model: {target}, dtype: bfloat16, max_model_len: 512, engine: {{enforce_eager: true}}}}
sampling: {{temperature: 0.7, max_tokens: 24}}
shard_rows: 16
domains: {{{shares}}}
sources:
{sources}
"""


@pytest.mark.slow
def test_the_four_commands_turn_prompts_into_a_measured_drafter(smollm2: Path, tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="the extra `cpu` or `vllm` brings the engine")
    (tmp_path / "small.yaml").write_text(manifest(smollm2))

    answered = run(tmp_path, "datagen run --manifest small.yaml")
    assert answered.returncode == 0, answered.stderr
    shards = sorted((tmp_path / "completions_raw").glob("completions_*.jsonl"))
    rows = [orjson.loads(line) for shard in shards for line in shard.read_bytes().splitlines()]
    assert [shard.name for shard in shards] == [f"completions_00000{n}.jsonl" for n in range(3)]
    assert len(rows) == 40 and all(row["completion_token_ids"] for row in rows)

    profiled = run(tmp_path, "curate profile completions_raw/")
    assert profiled.returncode == 0, profiled.stderr
    assert "code is 30.0% of samples" in profiled.stdout
    assert (tmp_path / "completions_raw/profile.html").is_file()

    built = run(tmp_path, "curate build --balance")
    assert built.returncode == 0, built.stderr
    card = orjson.loads((tmp_path / "tokenized_v1/set.json").read_bytes())
    assert len(datasets.load_from_disk(str(tmp_path / "tokenized_v1"))) == card["rows"] > 0
    heldout = datasets.load_from_disk(str(tmp_path / "tokenized_v1/heldout"))
    assert len(heldout) > 0

    small = "--drafter.num-layers 1 --drafter.block-size 4 --blocks.anchors 16 --batches.tokens 512 --batches.max-length 512"
    trained = run(
        tmp_path,
        f"train --data tokenized_v1 --out runs/small {small} --batches.per-step 1 --batches.buckets 1 --max-steps 3",
    )
    assert trained.returncode == 0, trained.stderr
    assert (tmp_path / "runs/small/step_3/checkpoint.pt").is_file()
    assert (tmp_path / "runs/small/metrics.jsonl").read_bytes().count(b"\n") >= 1

    evaluated = run(
        tmp_path,
        "drafter evaluate --run runs/small --data tokenized_v1 --max-prompts-per-domain 1 --max-new-tokens 12",
    )
    assert evaluated.returncode == 0, evaluated.stderr
    evaluation = orjson.loads((tmp_path / "runs/small/evaluation.json").read_bytes())
    assert evaluation["same_text"] == evaluation["texts"] > 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("datagen run --manifest nowhere.yaml", "no manifest 'nowhere.yaml'"),
        ("datagen run --manifest misspelt.yaml", "sauces"),
        ("curate profile nowhere/", "nowhere"),
        ("curate profile empty/", "empty"),
        ("curate build --balance --input empty/", "empty"),
        ("train --data empty/", "set.json"),
        ("drafter evaluate --run empty/ --data empty/", "set.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "misspelt.yaml").write_text("name: x\ntarget: {model: m}\nsauces: []\nsources: []\n")
    told = run(tmp_path, command)
    assert told.returncode == 2
    assert said in told.stderr
    assert len(told.stderr.strip().splitlines()) == 1

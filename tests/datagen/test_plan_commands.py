"""`datagen plan` shows what would run, and writes it where it is asked to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from datagen.plan import open_plan
from datagen.plan_commands import PlanCommand, plan
from tests.datagen.tiny_target import make_target


@pytest.fixture
def mix(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"prompt": str(number)}) + "\n" for number in [*range(30), "-"])
    )
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"prompt": str(number)}) + "\n" for number in range(25, 40)))
    sources = [
        {"name": "a", "files": "a.jsonl", "domain": "chat", "license": "MIT", "weight": 3},
        {"name": "b", "files": "b.jsonl", "domain": "code", "license": "MIT", "weight": 1},
    ]
    manifest = {
        "name": "mix",
        "target": {"model": str(make_target(tmp_path / "target", context_length=4096))},
        "sources": sources,
        "total": 40,
        "expected_tokens": 100,
        "domains": {"code": 1, "math": 1},
    }
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(manifest))
    return tmp_path / "mix.yaml"


def test_tables_reasons_and_cost_are_shown(mix: Path) -> None:
    text = plan(PlanCommand(manifest=str(mix), tokens_per_second=2, price_per_hour=3.5))
    lines = [line.split() for line in text.splitlines()]
    assert ["a", "chat", "prompt", "(prompt)", "31", "1", "0", "0", "30", "30", "30", "30", "3,000"] in lines
    assert ["b", "code", "prompt", "(prompt)", "15", "0", "0", "5", "10", "10", "10", "10", "1,000"] in lines
    assert ["chat", "30", "30", "3,000", "75.0%", "-"] in lines
    assert ["math", "0", "0", "0", "0.0%", "50.0%"] in lines
    assert "a: 1 dropped, placeholder_prompt (first: a.jsonl:31)" in text
    assert "b: 5 are prompts of a" in text
    assert text.endswith("4,000 tokens at 2/s: 0.6 hours, 1.94 at 3.50 per hour")


def test_the_speed_and_lengths_of_a_run_replace_what_was_expected(mix: Path, tmp_path: Path) -> None:
    sources = {"a": {"done": 10, "completion_tokens": 500}}
    for rank in (0, 1):
        status = {"completion_tokens_per_s": {"life": 4.0}, "sources": sources}
        (tmp_path / f"status_00{rank}_of_002.json").write_text(json.dumps(status))
    text = plan(PlanCommand(manifest=str(mix), measured=tmp_path))
    assert text.endswith("2,500 tokens at 8/s: 0.1 hours")
    with pytest.raises(ValueError, match=r"has no status.json: nothing was measured there; give --tokens-per-second"):
        plan(PlanCommand(manifest=str(mix), measured=tmp_path / "target"))


def test_a_plan_is_written_where_a_run_finds_it(mix: Path, tmp_path: Path) -> None:
    text = plan(PlanCommand(manifest=str(mix), out=tmp_path / "run"))
    assert text.endswith(f"{tmp_path / 'run'}: 40 rows in 1 shards, plan {open_plan(tmp_path / 'run').digest[:12]}")


def test_without_the_target_the_mix_is_shown_and_not_written(mix: Path, tmp_path: Path) -> None:
    mix.write_text(mix.read_text().replace(str(tmp_path / "target"), "models/none"))
    assert "warning: prompts were not measured against the target's context: target model 'models/none'" in plan(
        PlanCommand(manifest=str(mix))
    )
    with pytest.raises(ValueError, match="target model 'models/none': no such folder"):
        plan(PlanCommand(manifest=str(mix), out=tmp_path / "run"))

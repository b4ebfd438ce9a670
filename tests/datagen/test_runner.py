"""The run with the deterministic engine: what it publishes, and what it makes of faults."""

import asyncio
import time
from pathlib import Path

from datagen import ledger, shards
from datagen.engines.echo import EchoEngine, EchoOptions
from datagen.ledger import Ledger, OpenShard
from datagen.runner import Run
from tests.datagen.small_plans import QUICK, ByteRenderer, make_plan, published, run_plan


def test_shards_hold_every_planned_row_in_plan_order(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 25)
    outcome = run_plan(plan)
    assert (outcome.end, outcome.num_done, outcome.num_failed, outcome.num_pending) == ("complete", 25, 0, 0)
    rows = [row for path in shards.list_shards(tmp_path) for row in shards.read_rows(path)]
    assert [row["id"] for row in rows] == [planned.id for planned in plan.prompts()]
    assert [len(list(shards.read_rows(path))) for path in shards.list_shards(tmp_path)] == [10, 10, 5]
    assert not list((tmp_path / ledger.HIDDEN).glob("*.log"))


def test_a_later_turn_is_asked_on_the_targets_own_answer(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 5, turns=3, shard_rows=6)
    run_plan(plan)
    rows = {row["id"]: row for path in shards.list_shards(tmp_path) for row in shards.read_rows(path)}
    assert len(rows) == 15
    for row in rows.values():
        if "parent" in row:
            parent = rows[row["parent"]]
            answer = {"role": "assistant", "content": parent["completion"]}
            assert row["messages"][:-1] == [*parent["messages"], answer]


def test_faults_in_passing_change_no_byte(tmp_path: Path) -> None:
    calm, rough = make_plan(tmp_path / "calm", 60), make_plan(tmp_path / "rough", 60)
    run_plan(calm)
    outcome = run_plan(rough, EchoEngine(EchoOptions(concurrency=16, transient_frac=0.5, capacity_frac=0.3)))
    assert outcome.end == "complete"
    assert outcome.tally.faults["transient"] > 0 and outcome.tally.faults["capacity"] > 0
    assert published(tmp_path / "rough") == published(tmp_path / "calm")


def test_refused_rows_are_kept_with_their_reason_and_asked_again_on_demand(tmp_path: Path) -> None:
    calm, rough = make_plan(tmp_path / "calm", 60, turns=2), make_plan(tmp_path / "rough", 60, turns=2)
    run_plan(calm)
    outcome = run_plan(rough, EchoEngine(EchoOptions(concurrency=16, refused_frac=0.2)))
    assert outcome.end == "complete"
    failed = ledger.read_failed(tmp_path / "rough")
    assert outcome.num_failed == len(failed) > 0
    assert {entry["reason"] for entry in failed} == {"row", "parent"}
    assert outcome.num_done + outcome.num_failed == 120

    assert run_plan(rough).num_failed == len(failed), "failed rows stay failed until they are asked for"
    again = run_plan(rough, options=QUICK.model_copy(update={"retry_failed": True}))
    assert (again.num_done, again.num_failed) == (120, 0)
    assert ledger.read_failed(tmp_path / "rough") == []
    assert published(tmp_path / "rough") == published(tmp_path / "calm")


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    calm, cut = make_plan(tmp_path / "calm", 40), make_plan(tmp_path / "cut", 40)
    run_plan(calm)
    slow = EchoOptions(concurrency=4, delay_s=0.02)
    first = run_plan(cut, EchoEngine(slow), stop_after_s=0.08)
    assert first.end == "interrupted" and 0 < first.num_done < 40
    second = run_plan(cut, EchoEngine(slow))
    assert second.tally.num_done == 40 - first.num_done
    assert published(tmp_path / "cut") == published(tmp_path / "calm")


class SlowDisk(Ledger):
    """Publishes more slowly than the echo engine answers, and notes how many shards were open meanwhile."""

    most_open = 0
    run: Run

    def publish(self, shard: OpenShard) -> None:
        """Take a while."""
        time.sleep(0.02)
        self.most_open = max(self.most_open, self.run.snapshot().num_open_shards)
        super().publish(shard)


def test_a_disk_slower_than_the_engine_holds_the_engine_back(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 120, shard_rows=4)
    ledger.hidden(tmp_path)
    disk = SlowDisk(plan, tmp_path)
    options = QUICK.model_copy(update={"open_shards": 2})
    disk.run = Run(disk, EchoEngine(EchoOptions(concurrency=4)), ByteRenderer(), options)
    assert asyncio.run(disk.run.run()).end == "complete"
    # Two to be answered, two that wait to be published, one that is being published, and one opened for an idle engine.
    assert disk.most_open <= 6

"""The journal: whole records come back, torn ones are cut, damaged ones are skipped; and what the ledger makes of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen import journal, ledger
from datagen.journal import Journal
from datagen.ledger import Ledger
from tests.datagen.small_plans import make_plan, published, run_plan

RECORDS = st.lists(
    st.tuples(st.sampled_from(["done", "failed"]), st.text("0123456789abcdef", min_size=1, max_size=8), st.binary()),
    max_size=8,
)


@given(RECORDS)
@settings(max_examples=50, deadline=None)
def test_what_is_appended_is_replayed(tmp_path_factory: pytest.TempPathFactory, records: list[tuple]) -> None:
    path = tmp_path_factory.mktemp("journal") / "log"
    log = Journal(path, 0)
    written = [(kind, row, payload.replace(b"\n", b" ")) for kind, row, payload in records]
    places = [log.append(kind, row, payload) for kind, row, payload in written]
    assert [log.read(place) for place in places] == [payload for _, _, payload in written]
    log.close()
    replay = journal.replay(path)
    assert [(record.kind, record.id, record.payload) for record in replay.records] == written
    assert [record.place for record in replay.records] == places
    assert (replay.end, replay.num_damaged) == (path.stat().st_size, 0)


def test_a_tail_torn_at_any_byte_is_cut_and_the_rest_kept(tmp_path: Path) -> None:
    whole = journal.encode("done", "aa", b'{"id":"aa"}') + journal.encode("done", "bb", b'{"id":"bb"}')
    last = journal.encode("done", "cc", b'{"id":"cc"}')
    path = tmp_path / "log"
    for num_bytes in range(len(last)):
        path.write_bytes(whole + last[:num_bytes])
        replay = journal.replay(path)
        assert [record.id for record in replay.records] == ["aa", "bb"]
        log = Journal(path, replay.end)
        log.append("done", "dd", b"{}")
        log.close()
        assert path.read_bytes() == whole + journal.encode("done", "dd", b"{}")


def test_any_flipped_byte_costs_its_own_record_and_no_other(tmp_path: Path) -> None:
    lines = [journal.encode("done", row, b'{"a":1}') for row in ("aa", "bb", "cc")]
    path = tmp_path / "log"
    for at in range(len(lines[1]) - 1):
        damaged = bytearray(lines[1])
        damaged[at] ^= 0x20
        path.write_bytes(lines[0] + bytes(damaged) + lines[2])
        replay = journal.replay(path)
        assert [record.id for record in replay.records] == ["aa", "cc"]
        assert replay.num_damaged == 1


@pytest.mark.chaos
def test_a_run_resumes_from_a_journal_torn_at_any_byte_of_its_last_line(tmp_path: Path) -> None:
    calm = make_plan(tmp_path / "calm", 4, turns=2, shard_rows=8, max_tokens=2)
    book = Ledger(calm, calm.folder)
    ledger.hidden(calm.folder)
    run_plan(calm)
    expected = published(calm.folder)
    rows = [line for line in next(iter(expected.values())).splitlines()]
    records = [journal.encode("done", planned.id, line) for planned, line in zip(calm.shard(0), rows, strict=True)]
    log = book.hidden / ledger.log_name(0)
    offsets = range(len(records[5]) + 1)
    for num_bytes in offsets:
        (calm.folder / "completions_000000.jsonl").unlink(missing_ok=True)
        log.write_bytes(b"".join(records[:5]) + records[5][:num_bytes])
        shard = book.open(0)
        assert sorted(shard.done) == list(range(6 if num_bytes == len(records[5]) else 5))
        shard.close()
        if num_bytes % 200 == 0 or num_bytes >= len(records[5]) - 1:
            outcome = run_plan(calm)
            assert outcome.tally.num_done == (2 if num_bytes == len(records[5]) else 3)
            assert published(calm.folder) == expected


def test_a_turn_whose_earlier_turn_was_damaged_is_asked_again(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 2, turns=2, shard_rows=4)
    hidden = ledger.hidden(tmp_path)
    ids = [planned.id for planned in plan.shard(0)]
    (hidden / ledger.log_name(0)).write_bytes(
        journal.encode("done", ids[1], b"{}") + journal.encode("done", ids[2], b"{}")
    )
    shard = Ledger(plan, tmp_path).open(0)
    assert sorted(shard.done) == [2]
    shard.close()


def test_a_journal_of_another_plan_is_refused(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 2)
    (ledger.hidden(tmp_path) / ledger.log_name(0)).write_bytes(journal.encode("done", "another", b"{}"))
    with pytest.raises(ValueError, match="belongs to another plan"):
        Ledger(plan, tmp_path).open(0)


@pytest.mark.chaos
@pytest.mark.parametrize("step", ["published", "summed"])
def test_a_kill_between_the_steps_of_publishing_is_made_good(step: str, tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 10)
    hidden = ledger.hidden(tmp_path)
    run_plan(plan)
    expected, sums = published(tmp_path), (tmp_path / ledger.SUMS).read_bytes()
    lines = expected["completions_000000.jsonl"].splitlines()
    records = [journal.encode("done", planned.id, line) for planned, line in zip(plan.shard(0), lines, strict=True)]
    (hidden / ledger.log_name(0)).write_bytes(b"".join(records))
    if step == "published":
        (tmp_path / ledger.SUMS).unlink()
    outcome = run_plan(plan)
    assert (outcome.num_done, outcome.tally.num_done) == (10, 0)
    assert published(tmp_path) == expected
    assert (tmp_path / ledger.SUMS).read_bytes() == sums
    assert not list(hidden.glob("*.log"))

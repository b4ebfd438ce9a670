"""Which row is next, how many at once, and for how long: the deciders by themselves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.admission import Deadlines, Lengths, Limit, Queue, Row, backoff_s
from datagen.prompts import PlannedPrompt
from manifests.schema import Sampling


def a_row(shard: int, position: int, source: str = "a", turns_left: int = 1, max_tokens: int = 1000) -> Row:
    planned = PlannedPrompt(
        f"{shard}/{position}", source, "chat", [], None, Sampling(max_tokens=max_tokens), None, None, "c", 0
    )
    return Row(shard, position, planned, turns_left)


@given(st.permutations([(shard, position) for shard in range(3) for position in range(4)]))
@settings(deadline=None, max_examples=50)
def test_rows_leave_in_plan_order_however_they_came(places: list[tuple[int, int]]) -> None:
    queue = Queue(Lengths(100))
    for place in places:
        queue.push(a_row(*place, source="ab"[place[1] % 2]))
    assert [queue.pop(longest_first=False).place for _ in range(len(queue))] == sorted(places)


def test_at_the_end_the_longest_expected_rows_leave_first() -> None:
    lengths = Lengths(100)
    lengths.observe("short", 10)
    lengths.observe("long", 900)
    queue = Queue(lengths)
    queue.push(a_row(0, 0, "short"))
    queue.push(a_row(0, 1, "long", max_tokens=200))
    queue.push(a_row(0, 2, "unknown"))
    queue.push(a_row(0, 3, "long"))
    queue.push(a_row(0, 4, "unknown", turns_left=12))
    popped = [queue.pop(longest_first=True).position for _ in range(5)]
    assert popped == [4, 3, 1, 2, 0], "twelve turns of 100; 900; 900 cut at 200; 100; 10"


def test_the_limit_falls_once_per_overload_and_recovers_by_one_a_round() -> None:
    limit = Limit(100)
    for _ in range(100):
        limit.refused(admitted_at=0.0, now=1.0)
    assert limit.current == 75
    limit.refused(admitted_at=2.0, now=3.0)
    assert limit.current == 56
    for _ in range(60):
        limit.succeeded()
    assert limit.current == 57
    for _ in range(10_000):
        limit.succeeded()
    assert limit.current == 100


def test_the_limit_never_reaches_zero() -> None:
    limit = Limit(2)
    for second in range(50):
        limit.refused(admitted_at=second, now=second + 0.5)
    assert limit.current == 1


def test_a_deadline_follows_from_the_budget_and_then_from_what_was_seen() -> None:
    deadlines = Deadlines(floor_tokens_per_s=2.0, allowance_s=30.0)
    assert deadlines.seconds(1000) == 30 + 500
    for _ in range(50):
        deadlines.observe(num_tokens=1000, took_s=10.0)
    assert deadlines.seconds(1000) == pytest.approx(30 + 1000 / (100 / Deadlines.margin))
    for _ in range(1000):
        deadlines.observe(num_tokens=1, took_s=100.0)
    assert deadlines.seconds(1000) == 30 + 500, "never below the configured floor"


@given(st.text("0123456789abcdef", min_size=1), st.integers(1, 30))
@settings(deadline=None, max_examples=50)
def test_a_wait_is_the_same_each_time_and_never_beyond_the_longest(row_id: str, attempt: int) -> None:
    wait = backoff_s(row_id, attempt, base_s=1.0, most_s=60.0)
    assert wait == backoff_s(row_id, attempt, base_s=1.0, most_s=60.0)
    assert 0.5 * min(60, 2 ** (attempt - 1)) <= wait <= 1.5 * min(60, 2 ** (attempt - 1))

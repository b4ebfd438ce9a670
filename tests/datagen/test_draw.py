"""The draw holds the rows of lowest rank: in any order, nested, and without keeping the rest."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from datagen import draw
from datagen.draw import Draw


def _drawn(payloads: list[bytes], size: int) -> list[bytes]:
    found = Draw(size)
    for payload in payloads:
        found.offer(draw.rank(payload, seed=3), payload)
    return [found.payload(int(rank)) for rank in found.ranks()]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6), max_size=60), st.integers(0, 40), st.integers(0, 10))
def test_a_draw_is_the_lowest_ranks_whatever_the_order_and_a_larger_one_holds_it(
    payloads: list[bytes], size: int, more: int
) -> None:
    lowest = sorted(set(payloads), key=lambda payload: draw.rank(payload, seed=3))
    shuffled = sorted(payloads, key=lambda payload: draw.rank(payload, seed=9))
    assert _drawn(payloads, size) == lowest[:size]
    assert _drawn(shuffled, size) == lowest[:size]
    assert _drawn(payloads, size + more)[:size] == lowest[:size]


def test_a_long_stream_leaves_no_more_candidates_than_the_slack_allows() -> None:
    found = Draw(100)
    for number in range(50_000):
        payload = number.to_bytes(4, "little")
        found.offer(draw.rank(payload, seed=0), payload)
        assert len(found._offsets) <= 100 + 25 + 4096 + 1
    everything = sorted(range(50_000), key=lambda number: draw.rank(number.to_bytes(4, "little"), seed=0))
    assert [int.from_bytes(found.payload(int(rank)), "little") for rank in found.ranks()] == everything[:100]


def test_ranks_are_uniform_and_differ_by_seed_and_purpose() -> None:
    ranks = [draw.rank(str(number).encode(), seed=1) / 2**64 for number in range(4000)]
    assert abs(sum(ranks) / len(ranks) - 0.5) < 0.03
    assert draw.rank(b"x", seed=1) != draw.rank(b"x", seed=2)
    assert draw.fraction(7, "thinking", 1) != draw.fraction(7, "other", 1)
    assert draw.place(7, "a", 1) != draw.place(7, "b", 1)

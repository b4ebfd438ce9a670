"""Pools: every item once, with a state that each worker makes for itself, wherever the work is done."""

from __future__ import annotations

import operator

import pytest

from curation import pools


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_is_done_once(workers: int) -> None:
    results = pools.run(operator.add, [1, 2, 3], start=int, start_args=("5",), workers=workers)
    assert sorted(results) == [6, 7, 8]


def test_nothing_to_do_starts_nothing() -> None:
    assert list(pools.run(operator.add, [], start=operator.truediv, start_args=(1, 0), workers=2)) == []


def test_an_error_in_a_worker_is_raised_here() -> None:
    with pytest.raises(ZeroDivisionError):
        list(pools.run(operator.truediv, [0, 1], start=int, start_args=("5",), workers=2))

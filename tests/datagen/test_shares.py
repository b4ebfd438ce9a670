"""Weights are met to the row, caps and counts exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datagen.shares import allotments, total_prompts
from manifests.schema import Manifest


def _manifest(shares: list[dict[str, Any]], **changes: Any) -> Manifest:
    sources = [
        {"name": f"s{at}", "files": "x", "domain": "chat", "license": "MIT", **share} for at, share in enumerate(shares)
    ]
    return Manifest.model_validate({"name": "mix", "target": {"model": "m"}, "sources": sources, **changes})


def _allotted(shares: list[dict[str, Any]], **changes: Any) -> list[int]:
    return list(dict(sorted(allotments(_manifest(shares, **changes)).items())).values())


@pytest.mark.parametrize(
    ("shares", "total", "allotted"),
    [
        ([{"weight": 2}, {"weight": 3}, {"weight": 1}], 1000, [333, 500, 167]),
        ([{"weight": 0.1}, {"weight": 0.2}, {"weight": 0.7}], 10, [1, 2, 7]),
        ([{"weight": 1}, {"weight": 1}, {"weight": 1}], 100, [34, 33, 33]),
        ([{"weight": 1}, {"count": 7}], 10, [10, 7]),
        ([{"count": 7, "cap": 5}], None, [5]),
        ([{"weight": 1, "cap": 10}, {"weight": 1}, {"weight": 2}], 100, [10, 30, 60]),
        ([{"weight": 1, "cap": 10}, {"weight": 1, "cap": 31}, {"weight": 2}], 100, [10, 30, 60]),
        ([{"weight": 1, "cap": 10}, {"weight": 1, "cap": 20}, {"weight": 2}], 100, [10, 20, 70]),
        ([{"weight": 1, "cap": 10}, {"weight": 1, "cap": 20}], 100, [10, 20]),
    ],
)
def test_shares_become_prompts(shares: list[dict[str, Any]], total: int | None, allotted: list[int]) -> None:
    assert _allotted(shares, total=total) == allotted


def test_a_token_budget_becomes_prompts_by_the_expected_length() -> None:
    assert total_prompts(_manifest([{"weight": 1}], total_tokens=10_500, expected_tokens=1000)) == 10
    with pytest.raises(ValueError, match="`total_tokens` 999 is less than one answer"):
        _manifest([{"weight": 1}], total_tokens=999, expected_tokens=1000)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 99), st.none() | st.integers(1, 200)), min_size=1, max_size=6),
    st.integers(1, 500),
)
def test_every_share_is_within_a_row_of_its_quota_and_all_add_up(
    shares: list[tuple[int, int | None]], total: int
) -> None:
    found = _allotted([{"weight": weight / 10, "cap": cap} for weight, cap in shares], total=total)
    open_ended = [at for at, (_, cap) in enumerate(shares) if cap is None or found[at] < cap]
    assert all(cap is None or found[at] <= cap for at, (_, cap) in enumerate(shares))
    assert sum(found) == total or (not open_ended and sum(found) < total)
    left, weights = sum(found[at] for at in open_ended), sum(shares[at][0] for at in open_ended)
    assert all(abs(found[at] - Fraction(left * shares[at][0], weights)) < 1 for at in open_ended)

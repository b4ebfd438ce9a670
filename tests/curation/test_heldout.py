"""Holding out: a sample of every domain, whole clusters only, whatever the order of rows."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from curation.heldout import REASON, HeldoutSettings, hold_out, join_conversations, num_wanted


def _facts(domains: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"id": [f"row{index}" for index in range(len(domains))], "domain": domains})


@pytest.mark.parametrize(
    ("num_rows", "wanted"), [(3, 0), (5, 1), (13, 2), (20, 4), (200, 4), (308, 6), (10_000, 200), (300_000, 1000)]
)
def test_small_domains_give_up_to_a_fifth_and_large_ones_a_capped_fraction(num_rows: int, wanted: int) -> None:
    assert num_wanted(num_rows, HeldoutSettings()) == wanted


def test_every_domain_gives_its_number_and_the_rest_is_kept() -> None:
    facts = _facts(["code"] * 300 + ["math"] * 20 + ["chat"] * 4)
    positions = np.arange(324)
    outcome = hold_out(facts, positions, positions, HeldoutSettings(), seed=0)
    out = [facts["domain"][drop.row] for drop in outcome.dropped]
    assert {domain: out.count(domain) for domain in ("code", "math", "chat")} == {"code": 6, "math": 4, "chat": 0}
    assert {drop.reason for drop in outcome.dropped} == {REASON}
    assert sorted(outcome.kept.tolist() + [drop.row for drop in outcome.dropped]) == positions.tolist()


def test_a_cluster_goes_as_a_whole_or_stays_as_a_whole() -> None:
    facts = _facts(["code"] * 400)
    clusters = np.repeat(np.arange(200), 2)
    outcome = hold_out(facts, np.arange(400), clusters, HeldoutSettings(frac=0.1), seed=0)
    out = {drop.row for drop in outcome.dropped}
    assert len(out) == 40
    assert all((2 * cluster in out) == (2 * cluster + 1 in out) for cluster in range(200))


def test_a_domain_of_prompts_too_alike_to_part_gives_none_and_the_notes_say_so() -> None:
    facts = _facts(["code"] * 50)
    outcome = hold_out(facts, np.arange(50), np.zeros(50, dtype=np.int64), HeldoutSettings(), seed=0)
    assert outcome.dropped == []
    assert outcome.notes == ["held out 0 of 4 code rows: its other prompts are too alike to part"]


def test_the_choice_depends_on_ids_and_seed_and_not_on_the_order_of_rows() -> None:
    facts = _facts(["code"] * 100 + ["math"] * 50)
    order = np.random.default_rng(0).permutation(150)
    settings = HeldoutSettings()

    def chosen(table: pl.DataFrame, seed: int) -> set[str]:
        outcome = hold_out(table, np.arange(150), np.arange(150), settings, seed=seed)
        return {table["id"][drop.row] for drop in outcome.dropped}

    assert chosen(facts, 0) == chosen(facts[order], 0)
    assert chosen(facts, 0) != chosen(facts, 1)


def test_a_fraction_of_zero_holds_nothing_out() -> None:
    outcome = hold_out(_facts(["code"] * 100), np.arange(100), np.arange(100), HeldoutSettings(frac=0), seed=0)
    assert outcome.dropped == []
    assert outcome.kept.tolist() == list(range(100))


def test_turns_of_a_conversation_share_a_cluster_through_any_number_of_links() -> None:
    clusters = np.array([0, 0, 1, 1, 2, 3])
    openings = np.array([7, 8, 8, 9, 9, 5])
    labels = join_conversations(clusters, openings)
    assert labels[:5].tolist() == [labels[0]] * 5
    assert labels[5] != labels[0]

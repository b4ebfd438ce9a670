"""The funnel counts every row once, or stops."""

import numpy as np
import pytest

from curation.funnel import Drop, Funnel, Outcome


def test_reasons_are_counted_most_frequent_first():
    funnel = Funnel(5)
    drops = [Drop(1, "loop"), Drop(2, "empty"), Drop(4, "empty")]
    funnel.add("filters", np.arange(5), Outcome(np.array([0, 3]), drops))
    assert funnel.steps == [("filters", 2, {"empty": 2, "loop": 1})]


def test_repeated_rows_count_once():
    funnel = Funnel(2)
    funnel.add("balance", np.arange(2), Outcome(np.array([0, 0, 0]), [Drop(1, "over_target_share")]))
    assert funnel.steps == [("balance", 1, {"over_target_share": 1})]


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(np.array([0]), []),  # row 1 vanished
        Outcome(np.array([0, 1]), [Drop(1, "loop")]),  # row 1 is both
        Outcome(np.array([0, 1, 2]), []),  # row 2 was never there
        Outcome(np.array([0]), [Drop(1, "loop"), Drop(1, "empty")]),  # row 1 is counted twice
    ],
)
def test_a_step_that_loses_or_invents_rows_is_caught(outcome):
    with pytest.raises(AssertionError, match="not the rows that went in"):
        Funnel(2).add("step", np.arange(2), outcome)

"""The order of rounds, and paired ratios."""

import itertools
from collections import Counter

import pytest

from pycollective.bench.measurement.stats import balanced_order, paired_ratio


@pytest.mark.parametrize("n", range(8))
def test_every_candidate_is_first_and_follows_each_other_equally_often(n: int) -> None:
    rounds = [balanced_order(n, index) for index in range(2 * n)]
    assert all(sorted(order) == list(range(n)) for order in rounds)
    assert Counter(order[0] for order in rounds) == dict.fromkeys(range(n), 2)
    pairs = Counter(pair for order in rounds for pair in itertools.pairwise(order))
    assert set(pairs.values()) <= {2} and len(pairs) == n * (n - 1)


def test_a_slow_phase_of_the_machine_does_not_change_the_ratio() -> None:
    ours = [1.0, 1.0, 10.0, 1.0, 10.0]
    theirs = [3.0, 3.0, 30.0, 3.0, 30.0]
    ratio = paired_ratio(ours, theirs)
    assert (ratio.median, ratio.low, ratio.high, ratio.rounds) == (3.0, 3.0, 3.0, 5)
    # whereas the ratio of the medians would jump with one more slow round of either
    assert paired_ratio([1, 1, 10], [3, 30, 30]).median == 3


def test_spread() -> None:
    ratio = paired_ratio([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (ratio.low, ratio.median, ratio.high) == (2.0, 3.0, 4.0)


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0])])
def test_unpaired_rounds_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="same rounds"):
        paired_ratio(ours, theirs)

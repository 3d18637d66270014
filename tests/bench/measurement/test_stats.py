"""Rotation and paired ratios."""

import pytest

from pycollective.bench.measurement.stats import paired_ratio, rotation


def test_every_candidate_is_first_equally_often() -> None:
    rounds = [rotation(4, index) for index in range(8)]
    assert all(sorted(order) == [0, 1, 2, 3] for order in rounds)
    assert [order[0] for order in rounds] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rotation(0, 3) == []


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

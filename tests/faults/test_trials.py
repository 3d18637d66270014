"""A few of the trials in which ranks are killed and stopped at random moments; `make faults` runs 300."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from faults import trials

NUMBERS = {kind: [n for n in range(200) if trials.trial(n).kind == kind] for kind in trials.KINDS}
CHOSEN = [next(n for n in NUMBERS[kind] if n % 2 == odd) for kind in trials.KINDS for odd in (0, 1)]


@pytest.mark.torch
@pytest.mark.parametrize("number", CHOSEN, ids=lambda number: str(trials.trial(number)).replace(" ", "-"))
def test_trial(number: int) -> None:
    result = trials.run(trials.trial(number))
    assert not result.problems, result.problems
    assert len(result.seconds) == result.trial.n - 1

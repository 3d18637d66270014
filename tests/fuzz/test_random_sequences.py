"""Random sequences of calls, as threads under hypothesis and as processes under `pycollective run`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from processes import IMPORTABLE
from seeds import examples

from fuzz.sequences import play, random_steps
from launch import launch
from pycollective import local_world


@pytest.mark.fuzz
@examples(80)
@given(st.integers(1, 6), st.integers(0, 25), st.randoms())
def test_threads(n: int, length: int, choice: random.Random) -> None:
    steps = random_steps(choice, length)
    note(str(steps))
    local_world(n).run(lambda comm: play(comm, steps))


SCRIPT = """
    import sys
    import pycollective
    from fuzz.sequences import play, random_steps
    play(pycollective.init(), random_steps(int(sys.argv[1]), int(sys.argv[2])))
    print("done")
"""
CASES = [*((n, 10 + n, "") for n in (1, 2, 3, 4, 5)), (3, 21, "65536"), (3, 21, "200000")]


@pytest.mark.parametrize(("n", "seed", "scratch"), CASES)
def test_processes(n: int, seed: int, scratch: str) -> None:
    """Also with many small tiles, and slots that are reused immediately."""
    variables = {"PYCOLLECTIVE_TILE": "4096", "PYCOLLECTIVE_SCRATCH": scratch} if scratch else {}
    done = launch(n, SCRIPT, seed, 200, env=IMPORTABLE | {"PYCOLLECTIVE_TIMEOUT": "20"} | variables)
    assert list(done.check()) == ["done\n"] * n

"""Random sequences of calls, as threads under hypothesis and as processes under `pycollective run`."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import IMPORTABLE
from reference import DTYPES, OPERATORS, takes
from seeds import examples

from fuzz.sequences import ALONE, COUNTS, PATHS, Step, play, random_steps
from launch import launch
from pycollective import local_world

TYPED = [(dtype, op) for dtype in DTYPES for op in OPERATORS if takes(op, dtype)]
WHERE = {
    "count": st.sampled_from(COUNTS) | st.integers(0, 3000),
    "root": st.integers(0, 5),
    "x": st.sampled_from(("plain", "window", "view", "unaligned")),
    "out": st.sampled_from(("new", "same", "plain", "window", "view", "unaligned")),
    "waits": st.booleans(),
}
COLLECTIVE = st.builds(
    lambda path, typed, where: Step(*path, *typed, **where),
    st.sampled_from(PATHS), st.sampled_from(TYPED), st.fixed_dictionaries(WHERE),
)  # fmt: skip
OTHER = st.builds(Step, st.sampled_from(ALONE), count=st.sampled_from(COUNTS), waits=st.booleans())


@pytest.mark.fuzz
@examples(80)
@given(st.integers(1, 6), st.lists(COLLECTIVE | OTHER, max_size=25))
def test_threads(n: int, steps: list[Step]) -> None:
    local_world(n).run(lambda comm: play(comm, steps))


@pytest.mark.parametrize("n", [2, 3, 6])
def test_long_sequences(n: int) -> None:
    steps = random_steps(n, 250)
    local_world(n).run(lambda comm: play(comm, steps))


SCRIPT = """
    import sys
    import pycollective
    from fuzz.sequences import play, random_steps
    play(pycollective.init(), random_steps(int(sys.argv[1]), int(sys.argv[2])))
    print("done")
"""


@pytest.mark.parametrize(("n", "seed"), [(1, 11), (2, 12), (3, 13), (4, 14), (5, 15)])
def test_processes(n: int, seed: int) -> None:
    done = launch(n, SCRIPT, seed, 200, env=IMPORTABLE | {"PYCOLLECTIVE_TIMEOUT": "20"})
    assert done.returncode == 0, done.report()
    assert list(done) == ["done\n"] * n


@pytest.mark.parametrize("scratch", ["65536", "200000"])
def test_little_scratch(scratch: str) -> None:
    """Many small tiles, and slots that are reused immediately."""
    done = launch(3, SCRIPT, 21, 120, env=IMPORTABLE | {"PYCOLLECTIVE_SCRATCH": scratch, "PYCOLLECTIVE_TILE": "4096"})
    assert done.returncode == 0, done.report()
    assert sys.version_info >= (3, 10)

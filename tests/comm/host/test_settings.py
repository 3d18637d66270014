"""Ranks whose environments differ: the first rank's sizes apply to all."""

from __future__ import annotations

import pytest

from launch import launch

CASE = """
import os, sys
os.environ[sys.argv[1]] = sys.argv[2 + int(os.environ["PYCOLLECTIVE_RANK"])]
import numpy as np, pycollective as pc
comm = pc.init()
x = np.arange(100_000, dtype=np.float32) + comm.rank
for c in (comm, comm.split(0)):
    w = c.empty(x.size, x.dtype)
    w[:] = x
    for topology in ("direct", "ring"):
        assert np.array_equal(c.allreduce(x, topology=topology, timeout=10), 2 * np.arange(100_000) + 1)
        assert np.array_equal(c.allreduce(w, topology=topology, timeout=10), 2 * np.arange(100_000) + 1)
    if c.rank == 0:
        c.send(x, 1, timeout=10)
    else:
        assert np.array_equal(c.recv(np.empty_like(x), 0, timeout=10), np.arange(100_000))
print("fine")
"""


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("PYCOLLECTIVE_STAGED_TILE", (4096, 131072)),
        ("PYCOLLECTIVE_STAGED_TILE", (131072, 4096)),
        ("PYCOLLECTIVE_TILE", (8192, 131072)),
        ("PYCOLLECTIVE_SCRATCH", (1_000_000, 4_000_000)),
    ],
)
def test_the_first_ranks_sizes_apply(name: str, values: tuple[int, int]) -> None:
    assert [text.strip() for text in launch(2, CASE, name, *values, check=True)] == ["fine", "fine"]


REFUSED = """
import os, time
import numpy as np, pycollective as pc, pytest
for name in "PYCOLLECTIVE_TIMEOUT", "PYCOLLECTIVE_SPIN_US", "PYCOLLECTIVE_SCRATCH", "PYCOLLECTIVE_TILE":
    os.environ[name] = "soon"
    with pytest.raises(ValueError, match=f"{name}='soon'"):
        pc.init()
    del os.environ[name]
os.environ["PYCOLLECTIVE_TIMEOUT"] = "inf"
os.environ["PYCOLLECTIVE_SPIN_US"] = os.environ["PYCOLLECTIVE_TILE"] = "1e300"
print(pc.local_world(2).run(lambda comm: (time.sleep(0.05 * comm.rank), float(comm.allreduce(1.0)))[1]))
"""


def test_non_numbers_are_refused_and_infinity_is_clamped() -> None:
    assert launch(1, REFUSED, launcher="alone", check=True)[0] == "[2.0, 2.0]\n"

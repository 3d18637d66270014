"""Arrays with only __dlpack__: no shape, no dtype, no __dlpack_device__."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import on_each_rank

from pycollective import Communicator


class Bare:
    """The memory of an array; `versioned` false: an old producer without max_version."""

    def __init__(self, array: Any, versioned: bool = True) -> None:
        self._array, self._versioned = array, versioned

    def __dlpack__(self, **options: Any) -> Any:
        if not self._versioned and options:
            raise TypeError("unknown keyword")
        return self._array.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [True, False])
@on_each_rank(3)
def test_every_collective_takes_them(comm: Communicator, versioned: bool) -> None:
    n, me = comm.size, comm.rank
    x = np.arange(n * 2 * 3, dtype=np.float32).reshape(n * 2, 3) + me
    total, bare = sum(x + r - me for r in range(n)), Bare(x.copy(), versioned)

    def into(call: Any, expected: Any, *given: Any, shape: tuple[int, ...] | None = None) -> None:
        result = call(bare, *given)
        assert type(result) is np.ndarray and result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)
        memory = np.full(expected.shape, -1, np.float32)
        out = Bare(memory, versioned)
        assert call(bare, *given, out=out) is out
        np.testing.assert_array_equal(memory, expected)

    into(comm.allreduce, total)
    into(comm.broadcast, x - me + 1, 1)
    into(comm.reduce_scatter, total[2 * me : 2 * me + 2])
    into(comm.allgather, np.concatenate([x - me + r for r in range(n)]))
    into(comm.alltoall, np.concatenate([x[2 * me : 2 * me + 2] - me + r for r in range(n)]))
    into(comm.alltoallv, np.concatenate([x[2 * me : 2 * me + 2] - me + r for r in range(n)]), [2] * n)
    into(comm.scatter, (x - me)[2 * me : 2 * me + 2], 0)
    inplace = Bare(x.copy(), versioned)
    assert comm.iallreduce(inplace, inplace).result() is inplace
    np.testing.assert_array_equal(inplace._array, total)
    if me == 0:
        comm.send(bare, 1)
    if me == 1:
        received = np.empty((n * 2, 3), np.float32)
        comm.recv(Bare(received, versioned), 0)
        np.testing.assert_array_equal(received, x - 1)


@on_each_rank(2)
def test_strided_inputs_and_refusals(comm: Communicator) -> None:
    x = np.arange(12.0).reshape(3, 4)
    np.testing.assert_array_equal(comm.allreduce(Bare(x.T)), 2 * x.T)
    with pytest.raises(ValueError, match="contiguous"):
        comm.allreduce(x.T.copy(), out=Bare(x.T))
    with pytest.raises(TypeError, match="capsule"):
        comm.broadcast(type("Odd", (), {"__dlpack__": lambda self, **options: 3})())


def test_a_capsule_that_is_only_inspected_frees_its_array() -> None:
    import sys

    from pycollective import _core

    x = np.ones((2, 3))
    before = sys.getrefcount(x)
    for _ in range(10):
        assert _core.dlpack_layout(x) == (1, (2, 3))
    assert sys.getrefcount(x) == before

"""Every element type and operator on the (emulated) GPU, compared bitwise with CPU ranks, in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import DTYPES, NARROW, contributions, same_bits

import pycollective as pc
from gpu.device import data, get, put
from pycollective import _core
from pycollective.comm.communicator import Communicator

pytestmark = pytest.mark.usefixtures("cuda")

OPERATORS = [name for name, _ in _core.operators()]
COUNTS = (0, 1, 7, 513, 9001)
"""Nothing; one; less than a vector; the low-latency path; tiles with a remainder."""
SCALES: tuple[dict[str, Any], ...] = ({}, {"prescale": 0.5, "postscale": 0.25}, {"prescale": 0.5}, {"postscale": 0.5})
"""No result leaves the range of its type: the conversion of such a number is undefined."""


def same(found: Any, expected: Any) -> bool:
    """Bits of the CPU, except for a NaN's payload in 16- and 8-bit types, which the hardware chooses."""
    return found.tobytes() == expected.tobytes() or (expected.dtype.name in NARROW and same_bits(found, expected))


def inputs(dtype: str, operator: str, size: int, count: int) -> Any:
    """What shows most of each type: of the types that the reference lacks, some numbers."""
    if dtype in DTYPES:
        return contributions(dtype, operator, size, count)
    return np.stack([data(rank, count, dtype) for rank in range(size)])


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", _core.dtypes())
def test_every_type_and_operator(dtype: str, operator: str) -> None:
    given = {count: inputs(dtype, operator, 3, count) for count in COUNTS}

    def work(comm: Communicator) -> None:
        for count in COUNTS:
            for scale in SCALES:
                options: Any = {"op": operator, "topology": "direct", **scale}
                x = given[count][comm.rank]
                try:
                    expected = comm.allreduce(x, **options)
                except TypeError as refused:
                    with pytest.raises(TypeError) as caught:
                        comm.allreduce(put(x), **options)
                    assert str(caught.value) == str(refused)
                else:
                    assert same(get(comm.allreduce(put(x), **options)), expected), (count, scale)

    pc.local_world(3).run(work)

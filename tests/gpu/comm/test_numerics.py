"""Every element type and operator on the (emulated) GPU, compared bitwise with CPU ranks, in rank order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference import DTYPES, NARROW, contributions

import pycollective as pc
from gpu.device import get, put
from pycollective import _core
from pycollective.comm.communicator import Communicator

pytestmark = pytest.mark.usefixtures("cuda")

OPERATORS = [name for name, _ in _core.operators()]
COUNTS = (0, 1, 7, 513, 9001)
"""Nothing; one; less than a vector; the low-latency path; tiles with a remainder."""
SCALES = ((1.0, 1.0), (0.5, 0.25))
"""No result leaves the range of its type: the conversion of such a number is undefined."""


def same(found: Any, expected: Any) -> bool:
    """Bits of the CPU, except for a NaN's payload in 16- and 8-bit types, which the hardware chooses."""
    if found.tobytes() == expected.tobytes():
        return True
    if expected.dtype.name not in NARROW:
        return False
    a, b = found.astype(np.float32), expected.astype(np.float32)
    either = np.isnan(a) | np.isnan(b)
    bits = np.dtype(f"u{expected.itemsize}")
    return bool((np.isnan(a) == np.isnan(b)).all() and (found.view(bits) == expected.view(bits))[~either].all())


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_operator(dtype: str, operator: str) -> None:
    size = 3
    data = {count: contributions(dtype, operator, size, count) for count in COUNTS}

    def work(comm: Communicator) -> None:
        for count in COUNTS:
            for prescale, postscale in SCALES:
                scale = {} if prescale == 1.0 else {"prescale": prescale, "postscale": postscale}
                x = data[count][comm.rank]
                try:
                    expected = comm.allreduce(x, op=operator, topology="direct", **scale)
                except TypeError:
                    with pytest.raises(TypeError):
                        comm.allreduce(put(x), op=operator, topology="direct", **scale)
                    continue
                found = get(comm.allreduce(put(x), op=operator, topology="direct", **scale))
                assert same(found, expected), (count, scale)

    pc.local_world(size).run(work)

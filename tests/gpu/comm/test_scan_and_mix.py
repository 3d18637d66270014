"""Prefix reductions and mix of GPU arrays, compared bitwise with the CPU's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import TOPOLOGIES_OF, call, on_each_rank

import pycollective as pc
from gpu.device import LONG, data, in_window, put, same
from gpu.ranks import on_processes
from pycollective import Communicator
from pycollective.dtypes import DTYPES

pytestmark = pytest.mark.usefixtures("cuda")

SCANS = ("scan", "exscan")
TOPOLOGIES = TOPOLOGIES_OF["scan"]


def compare_scans(comm: Communicator, x: np.ndarray[Any, Any], **options: Any) -> None:
    for name in SCANS:
        same(call(comm, name, put(x), **options), call(comm, name, x, **options), name, x.size, options)


@on_processes(1, 2, 3)
def test_scans_between_processes(comm: Communicator) -> None:
    for count in (0, 1, 300, LONG):
        compare_scans(comm, data(comm.rank, count), postscale=0.5)
    for topology in TOPOLOGIES:
        compare_scans(comm, data(comm.rank, LONG), topology=topology)
    x = data(comm.rank, LONG)
    for name in SCANS:
        expected = call(comm, name, x, out=np.zeros_like(x))
        window, out = in_window(comm, x), in_window(comm, np.zeros_like(x))
        assert call(comm, name, window, out=out) is out
        same(out, expected)
        assert call(comm, name, window, out=window) is window
        same(window, x if name == "exscan" and comm.rank == 0 else expected, "rank 0's array is unchanged by exscan")
    with pytest.raises(ValueError, match="does not take operator avg"):
        comm.scan(put(x), op="avg")


@pytest.mark.parametrize("topology", TOPOLOGIES)
@on_each_rank(1, 2, 4)
def test_scans_of_ranks_on_one_gpu(comm: Communicator, topology: str) -> None:
    x = data(comm.rank, LONG)
    compare_scans(comm, x, topology=topology)
    a = put(x)
    assert comm.scan(a, out=a, topology=topology) is a
    same(a, comm.scan(x, topology=topology))


# -- mix ---------------------------------------------------------------------------------------------------------------


def ring(rank: int, size: int, step: int = 0) -> dict[int, float]:
    near = {(rank + shift) % size for shift in (-1, 0, 1)}
    return dict.fromkeys(near, 1 / len(near))


def pairs(rank: int, size: int, step: int = 0) -> dict[int, float]:
    partner = (step - rank) % size
    return {rank: 1.0} if partner == rank else {rank: 0.25, partner: 0.75}


def compare_mixes(comm: Communicator, x: np.ndarray[Any, Any]) -> None:
    for step, graph in enumerate((ring, pairs, pairs)):
        same(comm.mix(put(x), graph, step), comm.mix(x, graph, step), graph, x.dtype, x.size)


@on_processes(1, 2, 3)
def test_mix_between_processes(comm: Communicator) -> None:
    for count in (0, 1, 300, LONG):
        compare_mixes(comm, data(comm.rank, count))
    x = data(comm.rank, LONG)
    expected = comm.mix(x, ring)
    window, out = in_window(comm, x), comm.empty(LONG, np.float32, device="cuda")
    assert comm.mix(window, ring, out=out) is out
    same(out, expected)
    assert comm.mix(window, ring, out=window) is window
    same(window, expected)
    same(comm.mix(put(x), ring(comm.rank, comm.size)), expected)


@on_processes(2)
def test_mix_of_every_type(comm: Communicator) -> None:
    for row in DTYPES.values():
        if row.kind == "real" and row.name != "float8_e8m0fnu":
            compare_mixes(comm, data(comm.rank, 1003, row.name))
    with pytest.raises(TypeError, match="mix takes floating-point types, not int32"):
        comm.mix(put(np.arange(4, dtype=np.int32)), ring)


@on_each_rank(3)
def test_mix_of_ranks_on_one_gpu(comm: Communicator) -> None:
    compare_mixes(comm, data(comm.rank, LONG))
    with pytest.raises(pc.MismatchError, match="step"):
        comm.mix(put(data(comm.rank, 5)), ring, comm.rank)

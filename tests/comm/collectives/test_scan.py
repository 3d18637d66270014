"""Prefix reductions: rank r gets the reduction of ranks 0 to r (scan), or of those before it (exscan)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from calls import PLACES, has, on_each_rank, on_ranks, place
from reference import (
    DTYPES,
    IN_RANK_ORDER,
    OPERATORS,
    REALS,
    TOPOLOGIES,
    contributions,
    in_rank_order,
    reference,
    same_bits,
    takes,
)

import pycollective as pc
from pycollective import Communicator, MismatchError, local_world

SCANS = ("scan", "exscan")
OWN_TOPOLOGIES = [name for name in TOPOLOGIES if has(name, "scan")]
OPS = [op for op in OPERATORS if op != "avg"]


def inputs_of(collective: str, rank: int) -> int:
    """Number of ranks, from 0, that contribute to the result on a rank."""
    return rank + (collective == "scan")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_scans_match_the_reference(n: int, dtype: str) -> None:
    """Every operator, small and large variants; in rank order with one rounding if the topology guarantees that."""
    known = {}
    for op, count in itertools.product(OPS, (0, 7, 20_001)):
        if takes(op, dtype):
            xs = contributions(dtype, op, n, count)
            wholes = [reference(dtype, op, xs[:k]) for k in range(1, n + 1)]
            bits = [in_rank_order(dtype, op, xs[:k]) for k in range(1, n + 1)] if dtype in REALS else []
            known[op, count] = xs, wholes, bits
    cases = [*itertools.product(OWN_TOPOLOGIES, SCANS, known)]

    def part(topology: str, collective: str, key: tuple[str, int]) -> Any:
        return lambda comm: getattr(comm, collective)(known[key][0][comm.rank], op=key[0], topology=topology)

    wrong: list[str] = []
    for (topology, collective, key), got in zip(cases, on_ranks(n, [part(*case) for case in cases]), strict=True):
        _, wholes, bits = known[key]
        for rank, mine in enumerate(got):
            last = inputs_of(collective, rank) - 1
            if last < 0:
                error = "not zero" if mine.astype(np.float64).any() else ""
            elif bits and topology in IN_RANK_ORDER and not same_bits(mine, bits[last]):
                error = "not reduced in rank order with one rounding"
            else:
                error = wholes[last].error(mine)
            if error:
                wrong.append(f"{topology} {collective}(op={key[0]}, count={key[1]}), rank {rank}: {error}")
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.parametrize("topology", OWN_TOPOLOGIES)
@pytest.mark.parametrize("n", range(1, 18))
@on_each_rank()
def test_results_on_1_to_17_ranks_equal_numpys_cumulative_sums(comm: Communicator, n: int, topology: str) -> None:
    xs = contributions("int64", "sum", n, 3003).reshape(n, 3, 1001)
    sums = np.cumsum(xs, axis=0)
    before = sums[comm.rank - 1] if comm.rank else np.zeros_like(sums[0])
    for x in (xs[comm.rank], place(comm, xs[comm.rank], "window")):
        assert comm.scan(x, topology=topology).tolist() == sums[comm.rank].tolist()
        assert comm.exscan(x, topology=topology).tolist() == before.tolist()
        assert comm.iexscan(x, topology=topology).result(20).tolist() == before.tolist()


@pytest.mark.parametrize("topology", OWN_TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 5])
@on_each_rank()
def test_every_pair_of_places(comm: Communicator, n: int, topology: str) -> None:
    """x in one place and out in another, or in place, the same on all ranks; rank 0's exscan leaves out unchanged."""
    data = {count: contributions("int32", "sum", n, count) for count in (3, 2000, 40_000)}
    for collective, (count, xs), here, there in itertools.product(SCANS, data.items(), PLACES, (*PLACES, "in place")):
        x = place(comm, xs[comm.rank], here)
        out = x if there == "in place" else place(comm, np.full_like(xs[0], -5), there)
        untouched = out.copy()
        assert getattr(comm, collective)(x, out=out, topology=topology) is out
        first = xs[: inputs_of(collective, comm.rank)]
        expected = first.sum(axis=0, dtype=np.int32) if len(first) else untouched
        assert out.tolist() == expected.tolist(), (collective, count, here, there)
        if out is not x:
            assert x.tolist() == xs[comm.rank].tolist()


@pytest.mark.parametrize("topology", OWN_TOPOLOGIES)
@on_each_rank(4)
def test_factors_apply_to_each_contribution_and_once_to_each_result(comm: Communicator, topology: str) -> None:
    xs = contributions("int32", "max", 4, 10) // 4.0  # sums that are exact in any order
    for collective, where in itertools.product(SCANS, ("plain", "window")):
        x = place(comm, xs[comm.rank], where)
        got = getattr(comm, collective)(x, topology=topology, prescale=0.5, postscale=8.0)
        assert got.tolist() == (8 * (0.5 * xs[: inputs_of(collective, comm.rank)]).sum(axis=0)).tolist()


@pytest.mark.parametrize("collective", [*SCANS, "iscan", "iexscan"])
@on_each_rank(2)
def test_avg_is_refused_before_anything_is_sent(comm: Communicator, collective: str) -> None:
    with pytest.raises(ValueError, match=r"scan does not take operator avg: .* different numbers of inputs"):
        getattr(comm, collective)(np.ones(3), op="avg")
    assert comm.allreduce(1) == 2


@on_each_rank(2)
def test_a_scan_and_an_exscan_do_not_match(comm: Communicator) -> None:
    with pytest.raises(MismatchError, match=r"exscan\(count=3"):
        (comm.scan if comm.rank == 0 else comm.exscan)(np.ones(3))
        comm.barrier()  # rank 0 has not waited yet


def test_torch_tensors_and_own_operators() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("numba")
    later = pc.op(lambda a, b: b)  # not commutative: the last rank's value survives in rank order

    def body(comm: Communicator) -> None:
        x = torch.full((3,), float(comm.rank))
        for collective in SCANS:
            got = getattr(comm, collective)(x, op=later)
            assert isinstance(got, torch.Tensor)
            assert got.tolist() == [max(0.0, comm.rank - (collective == "exscan"))] * 3

    local_world(4).run(body)


@on_each_rank(1)
def test_an_exclusive_scan_of_objects_is_refused(comm: Communicator) -> None:
    """Rank 0's result is filled with zeros."""
    with pytest.raises(TypeError, match="element type object, which no collective takes"):
        comm.exscan(np.zeros(3, object))

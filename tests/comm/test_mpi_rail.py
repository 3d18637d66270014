"""Collectives over MPI, under a real mpirun, compared with references from every rank's seeded input."""

from __future__ import annotations

import pytest

from launch import find_mpirun, launch

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")]

# Start of every rank's script: a rail, and inputs that every rank can compute for all others.
PREAMBLE = """
import itertools
import ml_dtypes
import numpy as np
from mpi4py import MPI
from pycollective.comm.hosts.mpi_rail import MpiRail

rail = MpiRail(MPI.COMM_WORLD.Dup())
n, me = rail.size, rail.rank
INTS = [np.dtype(f"{u}int{b}") for u in ("", "u") for b in (8, 16, 32, 64)]
FLOAT8 = [np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)]
SMALL = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), *FLOAT8]
REALS = [*SMALL, np.dtype(np.float32), np.dtype(np.float64)]
ALL = [np.dtype(bool), *INTS, *REALS]

def inputs(dtype, count, seed=0):
    rng = np.random.default_rng([seed, count])
    low = 0 if dtype.kind in "ub" else -4
    return [rng.integers(low, 2 if dtype == bool else 5, count).astype(dtype) for _ in range(n)]

def same(got, want, what):
    assert got.dtype == want.dtype, what
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), err_msg=str(what))
"""

REDUCTIONS = """
REFERENCE = {
    "sum": lambda a: np.sum(a, axis=0), "prod": lambda a: np.prod(a, axis=0),
    "min": lambda a: np.min(a, axis=0), "max": lambda a: np.max(a, axis=0),
    "land": lambda a: np.all(a != 0, axis=0), "lor": lambda a: np.any(a != 0, axis=0),
    "band": lambda a: np.bitwise_and.reduce(a), "bor": lambda a: np.bitwise_or.reduce(a),
    "bxor": lambda a: np.bitwise_xor.reduce(a),
}

def reference(op, parts):
    dtype = parts[0].dtype
    if op in ("band", "bor", "bxor"):
        return REFERENCE[op](np.stack(parts))
    wide = np.stack(parts).astype(np.float64)
    if op == "avg":
        total = np.sum(wide, axis=0)
        if dtype.kind in "iu":
            return np.trunc(total / n).astype(dtype)
        return (total / n).astype(np.float32).astype(dtype)
    if dtype == bool:
        op = {"sum": "lor", "prod": "land"}.get(op, op)
    return REFERENCE[op](wide).astype(dtype)

def takes(op, dtype):
    if op in ("band", "bor", "bxor"):
        return dtype.kind in "biu" and dtype not in REALS
    return not (op == "avg" and dtype == bool)

checked = 0
for dtype, op, count in itertools.product(ALL, [*REFERENCE, "avg"], [0, 1, 7, 1000]):
    if not takes(op, dtype):
        continue
    parts = inputs(dtype, count)
    want = reference(op, parts)
    x = parts[me].copy()
    out = np.empty_like(x)
    assert rail.run("allreduce", x, out, op=op) is out
    if dtype == np.float64 and op == "avg":
        want = np.mean(np.stack(parts), axis=0)
    same(out, want, ("allreduce", dtype, op, count))
    same(x, parts[me], "the input is unchanged")
    rail.run("allreduce", x, x, op=op)
    same(x, want, ("allreduce in place", dtype, op, count))

    root = count % n
    x = parts[me].copy()
    out = np.empty_like(x) if me == root else None
    rail.run("reduce", x, out, op=op, root=root)
    same(x, parts[me], "the input is unchanged")
    if me == root:
        same(out, want, ("reduce", dtype, op, count))

    counts = [count // n + (r < count % n) for r in range(n)]
    out = np.empty(counts[me], dtype)
    rail.run("reduce_scatter", x, out, op=op, counts=counts)
    same(out, want[sum(counts[:me]) : sum(counts[: me + 1])], ("reduce_scatter", dtype, op, count))
    checked += 1
print(checked)
"""

SCALES = """
for dtype in (*INTS, *REALS):
    parts = [np.full(5, r + 1).astype(dtype) for r in range(n)]
    out = np.empty(5, dtype)
    rail.run("allreduce", parts[me], out, op="sum", prescale=2.0, postscale=0.5)
    same(out, np.full(5, n * (n + 1) // 2).astype(dtype), ("both scales", dtype))
    rail.run("allreduce", parts[me], out, op="avg", prescale=3.0)
    exact = 3 * n * (n + 1) / 2 / n
    same(out, np.full(5, int(exact) if dtype in INTS else exact).astype(dtype), ("avg", dtype))
    x = parts[me].copy()
    rail.run("reduce", x, x if me == 0 else None, op="max", prescale=2.0, root=0)
    same(x, np.full(5, 2 * n if me == 0 else me + 1).astype(dtype), ("max", dtype))
out = np.empty(3, np.int8)
rail.run("allreduce", np.full(3, -7, np.int8), out, op="avg", prescale=1.5)  # -10.5 -> -10, toward zero
assert out.tolist() == [-10] * 3, out
x = np.full(4, 100, np.int8)
rail.run("allreduce", x, x, op="avg")  # a sum that int8 could not hold
assert x.tolist() == [100] * 4
half = np.full(4, 40000, np.float16)
rail.run("allreduce", half, half, op="avg")  # nor float16: rounded only once, at the end
assert half.tolist() == [40000] * 4
for op in ("min", "max"):
    x = np.array([np.nan if me == n - 1 else 1.0, np.nan if me == 0 else 1.0, me], np.float32)
    rail.run("allreduce", x, x, op=op)
    assert np.isnan(x[:2]).all() and x[2] == (0 if op == "min" else n - 1), x
for dtype in SMALL:  # rounded once, not in every step, where each small addend would vanish
    tiny = np.array([1.0 if me == 0 else float(ml_dtypes.finfo(dtype).eps) / 2], dtype)
    out = np.empty_like(tiny)
    rail.run("allreduce", tiny, out, op="sum")
    exact = 1.0 + (n - 1) * float(tiny[0] if me else ml_dtypes.finfo(dtype).eps / 2)
    same(out, np.array([exact], np.float32).astype(dtype), ("rounded once", dtype))
print("done")
"""

MOVES = """
for dtype, count in itertools.product(ALL, [0, 1, 33]):
    parts = inputs(dtype, count)
    for root in range(n):
        x = parts[me] if me == root else None
        out = np.empty(count, dtype)
        rail.run("broadcast", x, out, root=root)
        same(out, parts[root], "broadcast")
        same_array = parts[me].copy()
        rail.run("broadcast", same_array, same_array, root=root)
        same(same_array, parts[root], "broadcast in place")
        out = np.empty(count * n, dtype) if me == root else None
        rail.run("gather", parts[me], out, root=root)
        if me == root:
            same(out, np.concatenate(parts), "gather")
        whole = np.concatenate(parts) if me == root else None
        out = np.empty(count, dtype)
        rail.run("scatter", whole, out, root=root)
        same(out, parts[me], "scatter")
        if me == root:  # into a part of its source
            rail.run("scatter", whole, whole[:count], root=root)
            same(whole[:count], parts[me], "scatter in place")
        else:
            rail.run("scatter", None, out, root=root)
    out = np.empty(count * n, dtype)
    rail.run("allgather", parts[me], out)
    same(out, np.concatenate(parts), "allgather")
    mine = out[me * count : (me + 1) * count]
    rail.run("allgather", mine, out)
    same(out, np.concatenate(parts), "allgather in place")

    counts = [(r * 2 + count) % 5 for r in range(n)]
    pieces = [np.resize(np.append(parts[r], np.ones(1, dtype)), counts[r]) for r in range(n)]
    out = np.empty(sum(counts), dtype)
    rail.run("allgatherv", pieces[me], out, counts=counts)
    same(out, np.concatenate(pieces), "allgatherv")
    root = n - 1
    out = np.empty(sum(counts), dtype) if me == root else None
    rail.run("gather", pieces[me], out, root=root, counts=counts)
    if me == root:
        same(out, np.concatenate(pieces), "gather of unequal parts")
    out = np.empty(counts[me], dtype)
    rail.run("scatter", np.concatenate(pieces) if me == root else None, out, root=root, counts=counts)
    same(out, pieces[me], "scatter of unequal parts")

    blocks = [[np.full(count, s * n + d).astype(dtype) for d in range(n)] for s in range(n)]
    x = np.concatenate(blocks[me])
    want = np.concatenate([blocks[s][me] for s in range(n)])
    out = np.empty_like(x)
    rail.run("alltoall", x, out)
    same(out, want, "alltoall")
    rail.run("alltoall", x, x)
    same(x, want, "alltoall in place")
    sizes = [[(s + 2 * d) % 4 for d in range(n)] for s in range(n)]
    blocks = [[np.full(sizes[s][d], s + d).astype(dtype) for d in range(n)] for s in range(n)]
    out = np.empty(sum(sizes[s][me] for s in range(n)), dtype)
    from_each = [s[me] for s in sizes]
    rail.run("alltoallv", np.concatenate(blocks[me]), out, counts=sizes[me], recv_counts=from_each)
    same(out, np.concatenate([blocks[s][me] for s in range(n)]), "alltoallv")

    if n > 1 and me < 2:
        if me == 0:
            rail.run("send", parts[0], root=1)
        else:
            out = np.empty(count, dtype)
            rail.run("recv", None, out, root=0)
            same(out, parts[0], "send and receive")
matrix = np.full((3, 4), me, np.float32)
rail.run("allreduce", matrix, matrix, op="max")
assert (matrix == n - 1).all()
rail.run("barrier", None)
print("done")
"""

OPERATORS = """
def later(a, b):  # not commutative: the last rank's value survives in rank order
    return b

def larger(a, b):  # arrays cannot be branch conditions: called for each element
    return a if a > b else b

x = np.full(100_000, me, np.int32)  # long enough that MPI would reorder a commutative operator
out = np.empty_like(x)
for _ in range(3):
    rail.run("allreduce", x, out, op=later)
    assert (out == n - 1).all(), out
x, out = x[:1000], out[:1000]
rail.run("allreduce", x, out, op=larger)
assert (out == n - 1).all(), out
for dtype in SMALL:
    x = np.full(5, me + 1, dtype)
    rail.run("allreduce", x, x, op=lambda a, b: a + b)
    same(x, np.full(5, n * (n + 1) // 2).astype(dtype), dtype)
print("done")
"""

BITS = """
from pycollective import _core

ROWS = [np.random.default_rng(r).standard_normal(50_001).astype(np.float32) for r in range(n)]
TYPES, OPS, SCALES = [np.dtype(np.float32), *SMALL], ["sum", "avg", "prod"], [(1.0, 1.0), (0.3, 1.7)]
checked = 0
for dtype, op, scale in itertools.product(TYPES, OPS, SCALES):
    for count in (1, 1000, 50_001):  # in one message, and in blocks
        parts = [row[:count].astype(dtype) for row in ROWS]
        want = np.empty(count, dtype)
        _core.combine(op, parts, [want], prescale=scale[0], postscale=scale[1])
        out, factors = np.empty(count, dtype), dict(prescale=scale[0], postscale=scale[1])
        rail.run("allreduce", parts[me], out, op=op, **factors)
        assert out.tobytes() == want.tobytes(), ("in rank order", dtype, op, scale, count)
        for cut in (count // 3, count - 1):  # and at any position of an element
            halves = [out[:cut].copy(), out[cut:].copy()]
            rail.run("allreduce", parts[me][:cut].copy(), halves[0], op=op, **factors)
            rail.run("allreduce", parts[me][cut:].copy(), halves[1], op=op, **factors)
            assert np.concatenate(halves).tobytes() == want.tobytes(), ("cut", dtype, op, scale, count)
        whole = np.empty(count, dtype) if me == n - 1 else None
        rail.run("reduce", parts[me], whole, op=op, root=n - 1, **factors)
        assert whole is None or whole.tobytes() == want.tobytes()
        checked += 1
orders = [np.empty(50_001, np.float32) for _ in range(2)]
for parts, total in zip([ROWS, ROWS[::-1]], orders):
    _core.combine("sum", parts, [total])
assert n < 3 or orders[0].tobytes() != orders[1].tobytes(), "order does not matter to these numbers"
print(checked)
"""

GROUPS = """
odd = rail.split(me % 2, key=-me)
assert odd.size == (n + 1 - me % 2) // 2
assert odd.rank == (odd.size - 1) - me // 2  # the key turns the order round
x = np.array([me], np.int64)
odd.run("allreduce", x, x)
assert x[0] == sum(r for r in range(n) if r % 2 == me % 2)
only = rail.split(0 if me == 0 else None)
assert (only is None) == (me != 0)
twin = rail.dup()
assert (twin.rank, twin.size) == (me, n)
x = np.array([1], np.int64)
twin.run("allreduce", x, x)
assert x[0] == n
for used in (odd, twin, only):
    if used is not None:
        used.free()
        used.free()
rail.run("barrier", None)
print("done")
"""


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_reductions(n: int) -> None:
    done = launch(n, PREAMBLE + REDUCTIONS, launcher="mpirun", check=True)
    # 15 types; 9 operators on bool, 10 on the 8 integers, 7 on the 6 floats; 4 counts
    assert [int(text) for text in done] == [4 * (9 + 10 * 8 + 7 * 6)] * n


@pytest.mark.parametrize("n", [1, 3, 4])
def test_bits_are_those_of_rank_order(n: int) -> None:
    """As `direct` has them on one host, for any size and wherever an element is: fusion changes none."""
    assert launch(n, PREAMBLE + BITS, launcher="mpirun", check=True).outputs == ["90\n"] * n


@pytest.mark.parametrize("n", [1, 3, 4])
def test_scaling_and_rounding(n: int) -> None:
    assert launch(n, PREAMBLE + SCALES, launcher="mpirun", check=True).outputs == ["done\n"] * n


@pytest.mark.parametrize("n", [1, 2, 4])
def test_moving(n: int) -> None:
    assert launch(n, PREAMBLE + MOVES, launcher="mpirun", check=True).outputs == ["done\n"] * n


@pytest.mark.parametrize("n", [1, 4])
def test_own_operators(n: int) -> None:
    assert launch(n, PREAMBLE + OPERATORS, launcher="mpirun", check=True).outputs == ["done\n"] * n


@pytest.mark.parametrize("n", [1, 4])
def test_split_dup_free(n: int) -> None:
    assert launch(n, PREAMBLE + GROUPS, launcher="mpirun", check=True).outputs == ["done\n"] * n

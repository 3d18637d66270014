"""The rail of communicators that span hosts: every collective over MPI's own, on contiguous NumPy arrays.

Results are those of the shared-memory path: NaN wins in min and max, sums of booleans are "or", averages of
integers round toward zero, and the 16- and 8-bit floats, which MPI lacks, are reduced in float32 and
rounded once. The order of reduction is MPI's. Calls block; deadlines and fingerprints do not reach across
hosts yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from mpi4py import MPI

Array = NDArray[Any]
Operator = str | Callable[[Any, Any], Any]

_AS_UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {
    1: np.uint8,
    2: np.uint16,
    4: np.uint32,
    8: np.uint64,
}
# MPI's names of our operators, by what they work on.
_ON_BOOL = {
    "sum": "LOR",
    "max": "LOR",
    "lor": "LOR",
    "bor": "LOR",
    "bxor": "LXOR",
    "prod": "LAND",
    "min": "LAND",
    "land": "LAND",
    "band": "LAND",
}
_ON_REALS = {"sum": "SUM", "avg": "SUM", "prod": "PROD"}
_ON_INTEGERS = {**_ON_REALS, "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR", "bxor": "BXOR"}
_NAN_WINS: dict[str, Callable[[Any, Any], Any]] = {"min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class _Call:
    """One collective call, as `MpiRail.run` got it."""

    x: Array | None
    out: Array | None
    op: Operator
    root: int
    counts: Sequence[int] | None
    recv_counts: Sequence[int] | None
    scale: tuple[float, float]  # before, after


class MpiRail:
    """Collectives over an mpi4py communicator, which the rail owns from then on.

    Not thread-safe: MPI orders collectives of one communicator by their calls, so all must come from one
    thread at a time, in the same order on every rank.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._comm: Any = comm
        self._own_ops: dict[Any, MPI.Op] = {}
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def run(
        self,
        collective: str,
        x: Array | None,
        out: Array | None = None,
        *,
        op: Operator = "sum",
        root: int = 0,
        counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        prescale: float | None = None,
        postscale: float | None = None,
    ) -> Array | None:
        """Carry out one collective and return `out`.

        Args:
            collective: allreduce, reduce, broadcast, reduce_scatter, allgather, allgatherv, gather, scatter,
                alltoall, alltoallv, barrier, send or recv.
            x: what this rank contributes, C-contiguous; None where it has no part (scatter or broadcast off
            the root,
                recv, barrier).
            out: where the result goes, C-contiguous, the same dtype; may be `x` itself. None where there is
            none.
            op: a name (sum avg prod min max band bor bxor land lor) or a function of two arrays or scalars;
                functions are taken to be associative, not commutative: MPI then keeps rank order.
            root: the root; for send the destination, for recv the source.
            counts: elements of each rank (reduce_scatter, allgatherv, gather, scatter; for alltoallv what
            goes to
                each); equal shares by default.
            recv_counts: for alltoallv, elements that come from each rank.
            prescale, postscale: factors on each contribution and on the result, as in the communicator.

        Raises:
            KeyError: an operator that the dtype lacks. mpi4py.MPI.Exception: whatever MPI reports.
        """
        scale = (1.0 if prescale is None else prescale, 1.0 if postscale is None else postscale)
        getattr(self, f"_{collective}")(_Call(x, out, op, root, counts, recv_counts, scale))
        return out

    def split(self, color: int | None, key: int = 0) -> MpiRail | None:
        """Collective: a rail for the ranks of the same `color`, by `key`; None for a `color` of None."""
        part = self._comm.Split(self._mpi.UNDEFINED if color is None else color, key)
        return None if part == self._mpi.COMM_NULL else MpiRail(part)

    def dup(self) -> MpiRail:
        """A rail over the same ranks whose messages do not mix with this one's. Collective."""
        return MpiRail(self._comm.Dup())

    def free(self) -> None:
        """Collective; may be called twice, and after MPI was finalized."""
        if self._comm is not None and not self._mpi.Is_finalized():
            for own in self._own_ops.values():
                own.Free()
            self._comm.Free()
        self._own_ops, self._comm = {}, None

    # -- moving data ---------------------------------------------------------------------------------------

    def _barrier(self, call: _Call) -> None:
        self._comm.Barrier()

    def _send(self, call: _Call) -> None:
        self._comm.Send(_raw(call.x), dest=call.root)

    def _recv(self, call: _Call) -> None:
        self._comm.Recv(_raw(call.out), source=call.root)

    def _broadcast(self, call: _Call) -> None:
        out = call.x if call.out is None else call.out
        if self.rank == call.root and out is not call.x:
            _raw(out)[:] = _raw(call.x)
        self._comm.Bcast(_raw(out), root=call.root)

    def _allgather(self, call: _Call) -> None:
        into = _raw(call.out)
        self._comm.Allgatherv(_apart(into, _raw(call.x)), [into, self._shares(call.counts, into)])

    _allgatherv = _allgather

    def _gather(self, call: _Call) -> None:
        if self.rank != call.root:
            self._comm.Gatherv(_raw(call.x), None, root=call.root)
            return
        into = _raw(call.out)
        source = _apart(into, _raw(call.x))
        self._comm.Gatherv(source, [into, self._shares(call.counts, into)], root=call.root)

    def _scatter(self, call: _Call) -> None:
        into = _raw(call.out)
        if self.rank != call.root:
            self._comm.Scatterv(None, into, root=call.root)
            return
        source = _apart(into, _raw(call.x))
        self._comm.Scatterv([source, self._shares(call.counts, source)], into, root=call.root)

    def _alltoall(self, call: _Call) -> None:
        source, into = _raw(call.x), _raw(call.out)
        send, receive = self._shares(call.counts, source), self._shares(call.recv_counts, into)
        self._comm.Alltoallv([_apart(into, source), send], [into, receive])

    _alltoallv = _alltoall

    def _shares(self, counts: Sequence[int] | None, whole: Array) -> Sequence[int]:
        """MPI takes counts alone for blocks that lie one after the other."""
        return [whole.size // self.size] * self.size if counts is None else list(counts)

    # -- reducing ------------------------------------------------------------------------------------------

    def _allreduce(self, call: _Call) -> None:
        contribution, op = self._enter(call, call.out)
        self._comm.Allreduce(self._mpi.IN_PLACE, contribution, op=op)
        self._leave(contribution, call)

    def _reduce(self, call: _Call) -> None:
        contribution, op = self._enter(call, call.out if self.rank == call.root else None)
        if self.rank == call.root:
            self._comm.Reduce(self._mpi.IN_PLACE, contribution, op=op, root=call.root)
            self._leave(contribution, call)
        else:
            self._comm.Reduce(contribution, None, op=op, root=call.root)

    def _reduce_scatter(self, call: _Call) -> None:
        contribution, op = self._enter(call, None)
        counts = self._shares(call.counts, contribution)
        mine = np.empty(counts[self.rank], contribution.dtype)
        self._comm.Reduce_scatter(contribution, mine, counts, op=op)
        self._leave(mine, call)

    def _enter(self, call: _Call, room: Array | None) -> tuple[Array, MPI.Op]:
        """This rank's contribution in the type that it is reduced in, and MPI's operator.

        The array is `room` where that has the right type, so that nothing is copied twice, else a new one.
        """
        x, before = _flat(call.x), call.scale[0]
        work = _work_dtype(x.dtype, call.op, call.scale)
        into = np.empty(x.size, work) if room is None or room.dtype != work else _flat(room)
        if work == np.bool_:
            np.not_equal(x, x.dtype.type(0), out=into)
        elif before != 1.0 and work.kind in "iu":
            into[:] = (x.astype(np.float64) * before).astype(work)
        else:
            if into.ctypes.data != x.ctypes.data:
                into[:] = x
            if before != 1.0:
                into *= into.dtype.type(before)
        return into, self._operator(call.op, work)

    def _leave(self, total: Array, call: _Call) -> None:
        """Divide, scale, round once, and put into `out`; `total` may be overwritten."""
        whole, after = total.dtype.kind in "iu", call.scale[1]
        if call.op == "avg" and whole:
            total = _truncated(total, self.size)
        elif call.op == "avg":
            total /= total.dtype.type(self.size)
        if after != 1.0 and whole:
            total = total.astype(np.float64) * after
        elif after != 1.0:
            total *= total.dtype.type(after)
        out = _flat(call.out)
        if out.ctypes.data != total.ctypes.data:
            with np.errstate(over="ignore"):  # a float16 overflows to infinity, as it does in C++
                out[:] = total.astype(out.dtype)

    def _operator(self, op: Operator, work: np.dtype[Any]) -> MPI.Op:
        if callable(op):
            return self._own(op, work, _over_arrays(op, work))
        if work == np.bool_:
            return self._builtin(_ON_BOOL[op])
        if work.kind in "iu":
            return self._builtin(_ON_INTEGERS[op])
        if op in _NAN_WINS:  # MPI leaves open what becomes of a NaN
            return self._own(op, work, _NAN_WINS[op])
        return self._builtin(_ON_REALS[op])

    def _builtin(self, name: str) -> MPI.Op:
        found: MPI.Op = getattr(self._mpi, name)
        return found

    def _own(self, op: Operator, work: np.dtype[Any], function: Callable[[Any, Any], Any]) -> MPI.Op:
        """An MPI operator made of a Python function; kept, because MPI has few of them."""
        key = (op, work)
        if key not in self._own_ops:

            def combine(left: Any, right: Any, _: Any) -> None:
                into = np.frombuffer(right, work)
                into[:] = function(np.frombuffer(left, work), into)

            self._own_ops[key] = self._mpi.Op.Create(combine, commute=isinstance(op, str))
        return self._own_ops[key]


def _flat(array: Array | None) -> Array:
    assert array is not None, "an array is missing where this rank has a part"
    return array.reshape(-1)


def _raw(array: Array | None) -> Array:
    """The elements as unsigned integers of their width: MPI only moves them, and lacks small floats."""
    flat = _flat(array)
    return flat.view(_AS_UNSIGNED[flat.dtype.itemsize])


def _apart(one: Array, other: Array) -> Array:
    """`other`, copied where it shares memory with `one`: MPI forbids overlapping buffers."""
    return other.copy() if np.may_share_memory(one, other) else other


def _work_dtype(dtype: np.dtype[Any], op: Operator, scale: tuple[float, float]) -> np.dtype[Any]:
    """The type that a reduction is carried out in."""
    if dtype == np.bool_ or op in ("land", "lor"):
        return np.dtype(np.bool_)
    if dtype.kind in "iu":
        wide = op == "avg" or scale != (1.0, 1.0)
        return np.dtype((np.int64 if dtype.kind == "i" else np.uint64) if wide else dtype)
    return dtype if dtype in (np.float32, np.float64) else np.dtype(np.float32)


def _truncated(total: Array, divisor: int) -> Array:
    """Integer division that rounds toward zero, as C++ does."""
    quotient = np.abs(total) // total.dtype.type(divisor)
    signed: Array = np.where(total < 0, -quotient, quotient) if total.dtype.kind == "i" else quotient
    return signed


def _over_arrays(function: Callable[[Any, Any], Any], work: np.dtype[Any]) -> Callable[[Any, Any], Any]:
    """A user's function as one of whole arrays; one that only takes scalars is called for each element."""
    probe = np.ones(2, work)
    try:
        if np.shape(function(probe, probe)) == (2,):
            return function
    except (TypeError, ValueError):
        pass
    return np.vectorize(function, otypes=[work])

"""The rail of communicators that span hosts: every collective over MPI, on contiguous NumPy arrays.

MPI moves the data; reductions run here, in the executor's kernels and in rank order. So the bits are those of `direct`
on one host, for any number of hosts, any size and any position of an element in the array. Each rank reduces a
block of the array, as in the reduce-scatter and allgather of Rabenseifner, "Optimization of Collective Reduction
Operations" (2004), but with direct exchanges instead of halving.

Calls block, until their deadline; call fingerprints are not compared across hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm.arguments.rows import split_rows
from pycollective.comm.hosts import mpi_wait
from pycollective.comm.hosts.rank_order import Array, Operator, reduce_rows
from pycollective.errors import CommunicatorError, Error
from pycollective.schedule.collectives import CALLS, Collective

if TYPE_CHECKING:
    from mpi4py import MPI

_AS_MOVED: dict[int, type[np.generic]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
WHOLE_BYTES = 32 << 10
"""Up to this total size of all ranks' arrays, every rank gets all of them, in one message instead of two."""


@dataclass(frozen=True, slots=True)
class _Call:
    """One collective call, with the arguments of `MpiRail.run`."""

    x: Array | None
    out: Array | None
    op: Operator
    root: int
    counts: Sequence[int] | None
    recv_counts: Sequence[int] | None
    scale: tuple[float, float]  # before, after
    name: str
    seconds: float


class MpiRail:
    """Collectives over an mpi4py communicator, which the rail then owns.

    A TimeoutError or PeerLostError ends the rail: later calls raise it again.

    Attributes:
        fault: the error that has ended it.
        watch: called periodically while a call waits; an error that it raises ends the rail.

    Not thread-safe: MPI orders collectives of one communicator by their calls, so all must come from one
    thread at a time, in the same order on every rank.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        from mpi4py import MPI

        self._mpi: Any = MPI
        self._comm: Any = comm
        self.fault: Error | None = None
        self.watch: Callable[[], None] | None = None
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        mpi_wait.leave_at_exit()

    @property
    def comm(self) -> Any:
        """The mpi4py communicator; for the owner of the rail."""
        return self._comm

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
        seconds: float = math.inf,
    ) -> Array | None:
        """Execute one collective and return `out`.

        Args:
            collective: allreduce, reduce, broadcast, reduce_scatter, allgather, allgatherv, gather, scatter,
                alltoall, alltoallv, barrier, send or recv.
            x: this rank's contribution, C-contiguous; None if it has none (scatter or broadcast on non-root ranks,
                recv, barrier).
            out: receives the result, C-contiguous, the same dtype; may be `x` itself. None if there is none.
            op: a name (sum avg prod min max band bor bxor land lor) or a function of two arrays or scalars;
                functions are assumed to be associative, not commutative: MPI then keeps rank order.
            root: the root; for send the destination, for recv the source.
            counts: elements of each rank (reduce_scatter, allgatherv, gather, scatter; for alltoallv, elements sent
                to each); equal shares by default.
            recv_counts: for alltoallv, elements received from each rank.
            prescale, postscale: factors on each contribution and on the result, as in the communicator.
            seconds: until the call is abandoned.

        Raises:
            KeyError: the dtype does not have the operator.
            TimeoutError: other ranks did not call in time. PeerLostError: MPI reports a lost rank. CommunicatorError:
                any other error of MPI. After these `x` and `out` must not be used any more.
        """
        if self.fault is not None:
            raise self.fault
        scale = (1.0 if prescale is None else prescale, 1.0 if postscale is None else postscale)
        call = _Call(x, out, op, root, counts, recv_counts, scale, collective, seconds)
        row = CALLS.get(collective)
        if row is not None and row.prefix != "none":
            self._prefix(call, row)
        else:
            getattr(self, f"_{collective}")(call)
        return out

    def _do(self, call: _Call, start: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        """Start one of mpi4py's nonblocking calls and wait for it."""
        try:
            mpi_wait.finish(self._comm, lambda: start(*arguments, **named), call.seconds, call.name, self.watch)
        except Error as error:
            self.fault = error
            raise
        except KeyboardInterrupt:
            self.fault = CommunicatorError(f"{call.name} was interrupted, and the other ranks may still be in it")
            raise

    def split(self, color: int | None, key: int = 0) -> MpiRail | None:
        """Collective: a rail for the ranks of the same `color`, by `key`; None for a `color` of None."""
        part = self._comm.Split(self._mpi.UNDEFINED if color is None else color, key)
        return None if part == self._mpi.COMM_NULL else MpiRail(part)

    def dup(self) -> MpiRail:
        """A rail over the same ranks whose messages do not mix with this one's. Collective."""
        return MpiRail(self._comm.Dup())

    def shrink(self, seconds: float) -> tuple[MpiRail, list[int]]:
        """Collective over the surviving ranks: a rail for them, and their ranks here. Also after a fault.

        Raises:
            CommunicatorError: MPI was not started to tolerate lost ranks, or a survivor did not call in time.
        """
        comm = self._comm
        if comm is None:
            raise CommunicatorError("the communicator was freed")
        made = mpi_wait.shrink(comm, seconds)
        all_ranks = comm.Get_group()
        ranks = made.Get_group().Translate_ranks(None, all_ranks)
        return MpiRail(made), [int(rank) for rank in ranks]

    def free(self) -> None:
        """Collective; may be called twice, and after MPI was finalized."""
        # After a fault it would wait for the missing rank.
        if self.fault is None and self._comm is not None and not self._mpi.Is_finalized():
            self._comm.Free()
        self._comm = None

    # -- moving data ---------------------------------------------------------------------------------------

    def _barrier(self, call: _Call) -> None:
        self._do(call, self._comm.Ibarrier)

    def _send(self, call: _Call) -> None:
        self._do(call, self._comm.Isend, _raw(call.x), dest=call.root)

    def _recv(self, call: _Call) -> None:
        self._do(call, self._comm.Irecv, _raw(call.out), source=call.root)

    def _broadcast(self, call: _Call) -> None:
        out = call.x if call.out is None else call.out
        if self.rank == call.root and out is not call.x:
            _raw(out)[:] = _raw(call.x)
        self._do(call, self._comm.Ibcast, _raw(out), root=call.root)

    def _allgather(self, call: _Call) -> None:
        into = _raw(call.out)
        self._do(call, self._comm.Iallgatherv, _disjoint(into, _raw(call.x)), [into, self._shares(call.counts, into)])

    _allgatherv = _allgather

    def _gather(self, call: _Call) -> None:
        if self.rank != call.root:
            self._do(call, self._comm.Igatherv, _raw(call.x), None, root=call.root)
            return
        into = _raw(call.out)
        source = _disjoint(into, _raw(call.x))
        self._do(call, self._comm.Igatherv, source, [into, self._shares(call.counts, into)], root=call.root)

    def _scatter(self, call: _Call) -> None:
        into = _raw(call.out)
        if self.rank != call.root:
            self._do(call, self._comm.Iscatterv, None, into, root=call.root)
            return
        source = _disjoint(into, _raw(call.x))
        self._do(call, self._comm.Iscatterv, [source, self._shares(call.counts, source)], into, root=call.root)

    def _alltoall(self, call: _Call) -> None:
        source, into = _raw(call.x), _raw(call.out)
        send, receive = self._shares(call.counts, source), self._shares(call.recv_counts, into)
        self._do(call, self._comm.Ialltoallv, [_disjoint(into, source), send], [into, receive])

    _alltoallv = _alltoall

    def _shares(self, counts: Sequence[int] | None, whole: Array) -> list[int]:
        """MPI takes only counts for consecutive blocks."""
        return [whole.size // self.size] * self.size if counts is None else list(counts)

    # -- reductions ----------------------------------------------------------------------------------------

    def _allreduce(self, call: _Call) -> None:
        x, out = _flat(call.x), _flat(call.out)
        if x.nbytes * self.size <= WHOLE_BYTES:
            reduce_rows(self._all_rows(call, x), out, call.op, call.scale)
            return
        counts = list(split_rows(x.size, self.size))  # mpi4py would read displacements from a tuple
        part = self._part(call, x, counts)
        self._do(call, self._comm.Iallgatherv, _raw(part), [_raw(out), counts])

    def _reduce(self, call: _Call) -> None:
        x, at_root = _flat(call.x), self.rank == call.root
        counts = list(split_rows(x.size, self.size))  # mpi4py would read displacements from a tuple
        part = self._part(call, x, counts)
        into = [_raw(call.out), counts] if at_root else None
        self._do(call, self._comm.Igatherv, _raw(part), into, root=call.root)

    def _reduce_scatter(self, call: _Call) -> None:
        x = _flat(call.x)
        _flat(call.out)[:] = self._part(call, x, self._shares(call.counts, x))

    def _prefix(self, call: _Call, row: Collective) -> None:
        """Each rank computes all ranks' results of its block, as the large variant of `direct` does."""
        x = _flat(call.x)
        counts = list(split_rows(x.size, self.size))  # mpi4py would read displacements from a tuple
        rows = self._blocks(call, x, counts)
        results = np.zeros_like(rows)
        for rank in range(self.size):
            first = sum(row.contributes(source, rank) for source in range(self.size))  # number of contributors, from 0
            if first:
                reduce_rows(rows[:first], results[rank], call.op, call.scale)
        into = _flat(call.out) if row.has_result(self.rank) else np.empty_like(x)
        self._do(call, self._comm.Ialltoallv, [_raw(results), [counts[self.rank]] * self.size], [_raw(into), counts])

    def _all_rows(self, call: _Call, x: Array) -> Array:
        """A row for each rank's elements."""
        rows = np.empty((self.size, x.size), x.dtype)
        self._do(call, self._comm.Iallgather, _raw(x), _raw(rows))
        return rows

    def _part(self, call: _Call, x: Array, counts: list[int]) -> Array:
        """This rank's block of the reduction, with blocks of `counts` elements."""
        part = np.empty(counts[self.rank], x.dtype)
        reduce_rows(self._blocks(call, x, counts), part, call.op, call.scale)
        return part

    def _blocks(self, call: _Call, x: Array, counts: list[int]) -> Array:
        """A row for each rank's contribution to this rank's block, with blocks of `counts` elements."""
        mine = counts[self.rank]
        rows = np.empty((self.size, mine), x.dtype)
        self._do(call, self._comm.Ialltoallv, [_raw(x), counts], [_raw(rows), [mine] * self.size])
        return rows


def _flat(array: Array | None) -> Array:
    assert array is not None, "this rank has a part but no array"
    return array.reshape(-1)


def _raw(array: Array | None) -> Array:
    """The elements as a type of equal width, mostly unsigned integers: MPI only moves them, and lacks small floats."""
    flat = _flat(array)
    return flat.view(_AS_MOVED[flat.dtype.itemsize])


def _disjoint(one: Array, other: Array) -> Array:
    """`other`, copied if it shares memory with `one`: MPI forbids overlapping buffers."""
    return other.copy() if np.may_share_memory(one, other) else other

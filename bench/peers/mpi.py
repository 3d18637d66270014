"""Open MPI, MPICH or Intel MPI, whichever mpi4py uses, in its fastest common form: buffers described once."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from . import Array, Call, Peer, PeerUnavailable, round_trip

if TYPE_CHECKING:
    from pycollective.graphs import Graph

    from ..ranks.world import World
    from ..workload.cases import Case

__all__ = ["MpiPeer", "open"]

_TYPES = {
    "int8": "INT8_T", "int16": "INT16_T", "int32": "INT32_T", "int64": "INT64_T",
    "uint8": "UINT8_T", "uint16": "UINT16_T", "uint32": "UINT32_T", "uint64": "UINT64_T",
    "float32": "FLOAT", "float64": "DOUBLE", "bool": "C_BOOL",
}  # fmt: skip
_OPS = {
    "sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX",
    "band": "BAND", "bor": "BOR", "bxor": "BXOR", "land": "LAND", "lor": "LOR",
}  # fmt: skip


class MpiPeer(Peer):
    """MPI's own collectives on the world communicator."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._comm = mpi.COMM_WORLD
        self.name, self.version = identify(mpi.Get_library_version())

    def supports(self, case: Case) -> bool:
        if not case.kind.reduces:
            return True  # every type can be moved as bytes
        if case.dtype == "bool" and case.op not in ("land", "lor"):
            return False
        bits = case.op in ("band", "bor", "bxor")
        return case.dtype in _TYPES and case.op in _OPS and not (bits and case.dtype.startswith("float"))

    def _buffer(self, array: Array, blocks: int = 1) -> list[Any]:
        """A buffer's description; MPI specifies a buffer of one block for each rank by its block."""
        memory = self._mpi.memory.frombuffer(array.view("u1"))
        if array.dtype.name not in _TYPES:
            return [memory, array.nbytes // blocks, self._mpi.BYTE]
        return [memory, array.size // blocks, getattr(self._mpi, _TYPES[array.dtype.name])]

    def _input(self, send: Array, recv: Array) -> Any:
        return self._mpi.IN_PLACE if send is recv else self._buffer(send)

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        return self._reduction(self._comm.Allreduce, send, recv, op)

    def scan(self, send: Array, recv: Array, op: str) -> Call:
        return self._reduction(self._comm.Scan, send, recv, op)

    def exscan(self, send: Array, recv: Array, op: str) -> Call:
        return self._reduction(self._comm.Exscan, send, recv, op)

    def _reduction(self, call: Any, send: Array, recv: Array, op: str) -> Call:
        source, target, operator = self._input(send, recv), self._buffer(recv), getattr(self._mpi, _OPS[op])
        return lambda: call(source, target, operator)

    def mix(self, send: Array, recv: Array, graph: Graph) -> Call:
        """The neighbours' arrays by MPI-3's neighbourhood collective, added by NumPy without temporary arrays."""
        rank, size, count = self._comm.rank, self._comm.size, send.size
        weights = {source: send.dtype.type(weight) for source, weight in graph(rank, size).items()}
        sources = [source for source in weights if source != rank]
        readers = [other for other in range(size) if other != rank and rank in graph(other, size)]
        neighbours = self._comm.Create_dist_graph_adjacent(sources, readers)
        received, product = np.empty((len(sources), count), send.dtype), np.empty_like(send)
        _, _, element = self._buffer(send)
        each = count if element != self._mpi.BYTE else send.nbytes
        offsets = [k * send.nbytes for k in range(len(sources))]
        given = [send.view("u1"), [each] * len(readers), [0] * len(readers), [element] * len(readers)]
        taken = [received.view("u1"), [each] * len(sources), offsets, [element] * len(sources)]
        exchange, multiply, add, own = neighbours.Neighbor_alltoallw, np.multiply, np.add, weights[rank]
        pairs = [(received[k], weights[source]) for k, source in enumerate(sources)]

        def call() -> None:
            exchange(given, taken)
            multiply(send, own, out=recv)
            for array, weight in pairs:
                multiply(array, weight, out=product)
                add(recv, product, out=recv)

        return call

    def broadcast(self, buffer: Array, root: int) -> Call:
        comm, both = self._comm, self._buffer(buffer)
        return lambda: comm.Bcast(both, root)

    def reduce(self, send: Array, recv: Array, op: str, root: int) -> Call:
        comm, operator, target = self._comm, getattr(self._mpi, _OPS[op]), self._buffer(recv)
        if send is recv and comm.rank != root:  # MPI allows "in place" at the root only
            source = self._buffer(send)
            return lambda: comm.Reduce(source, None, operator, root)
        source = self._input(send, recv)
        return lambda: comm.Reduce(source, target, operator, root)

    def reduce_scatter(self, send: Array, recv: Array, op: str) -> Call:
        comm, operator = self._comm, getattr(self._mpi, _OPS[op])
        source, target = self._buffer(send, comm.size), self._buffer(recv)
        return lambda: comm.Reduce_scatter_block(source, target, operator)

    def allgather(self, send: Array, recv: Array) -> Call:
        comm = self._comm
        source, target = self._buffer(send), self._buffer(recv, comm.size)
        return lambda: comm.Allgather(source, target)

    def gather(self, send: Array, recv: Array, root: int) -> Call:
        comm = self._comm
        source, target = self._buffer(send), self._buffer(recv, comm.size)
        return lambda: comm.Gather(source, target, root)

    def scatter(self, send: Array, recv: Array, root: int) -> Call:
        comm = self._comm
        source, target = self._buffer(send, comm.size), self._buffer(recv)
        return lambda: comm.Scatter(source, target, root)

    def alltoall(self, send: Array, recv: Array) -> Call:
        comm = self._comm
        source, target = self._buffer(send, comm.size), self._buffer(recv, comm.size)
        return lambda: comm.Alltoall(source, target)

    def sendrecv(self, send: Array, recv: Array) -> Call:
        comm = self._comm
        return round_trip(comm.rank, comm.size, comm.Send, self._buffer(send), comm.Recv, self._buffer(recv))

    def barrier(self) -> Call:
        call: Call = self._comm.Barrier
        return call


def identify(text: str) -> tuple[str, str]:
    """("openmpi", "Open MPI 5.0.11") from the output of MPI_Get_library_version."""
    if match := re.search(r"Open MPI v?([\w.]+)", text):
        return "openmpi", f"Open MPI {match[1].rstrip('.')}"
    if match := re.search(r"Intel\(R\) MPI Library ([\w.]+)", text):
        return "impi", f"Intel MPI {match[1]}"
    if match := re.search(r"MPICH Version:\s*([\w.]+)", text):
        return "mpich", f"MPICH {match[1]}"
    return "mpi", text.splitlines()[0].strip()[:60] if text.strip() else "unknown MPI"


def open(world: World) -> MpiPeer:
    """MPI on the ranks of this world; PeerUnavailable without mpi4py or if not started by its mpirun."""
    try:
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:  # the latter without an MPI library
        raise PeerUnavailable(f"mpi4py cannot be used: {str(error).partition(chr(10))[0]}") from error
    if mpi.COMM_WORLD.size != world.size:
        raise PeerUnavailable(f"these {world.size} ranks were not started by the mpirun of mpi4py")
    return MpiPeer(mpi)

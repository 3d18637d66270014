"""Our own collectives: one peer for each topology, all on the same communicator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import Array, Call

if TYPE_CHECKING:
    from ..cases import Case

__all__ = ["PycollectivePeer", "find_topology", "has", "operators", "topologies_of", "unsupported"]


class PycollectivePeer:
    """One topology; None leaves the choice to the library.  The arrays determine windows or staging."""

    name = "pycollective"
    always_in_place = frozenset[str]()
    checked = True

    def __init__(self, comm: Any, topology: Any | None) -> None:
        self._comm, self._topology = comm, topology
        self.version = f"pycollective {importlib.import_module('pycollective').__version__}"

    def supports(self, case: Case) -> bool:
        return True  # unsupported cases fail at the first call

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        call, topology = self._comm.allreduce, self._topology
        if op == "sum":  # as usually written: no cost for unused options
            return (lambda: call(send, recv)) if topology is None else (lambda: call(send, recv, topology=topology))
        return lambda: call(send, recv, op=op, topology=topology)

    def scan(self, send: Array, recv: Array, op: str) -> Call:
        return self._reduction(self._comm.scan, send, recv, op)

    def exscan(self, send: Array, recv: Array, op: str) -> Call:
        return self._reduction(self._comm.exscan, send, recv, op)

    def reduce_scatter(self, send: Array, recv: Array, op: str) -> Call:
        return self._reduction(self._comm.reduce_scatter, send, recv, op)

    def _reduction(self, call: Any, send: Array, recv: Array, op: str) -> Call:
        topology = self._topology
        return lambda: call(send, recv, op=op, topology=topology)

    def broadcast(self, buffer: Array, root: int) -> Call:
        call, topology = self._comm.broadcast, self._topology
        if topology is None:
            return lambda: call(buffer, root, buffer)
        return lambda: call(buffer, root, buffer, topology=topology)

    def reduce(self, send: Array, recv: Array, op: str, root: int) -> Call:
        call, topology = self._comm.reduce, self._topology
        return lambda: call(send, root, recv, op=op, topology=topology)

    def allgather(self, send: Array, recv: Array) -> Call:
        call, topology = self._comm.allgather, self._topology
        return lambda: call(send, recv, topology=topology)

    def gather(self, send: Array, recv: Array, root: int) -> Call:
        call, topology = self._comm.gather, self._topology
        out = recv if self._comm.rank == root else None
        return lambda: call(send, root, out=out, topology=topology)

    def scatter(self, send: Array, recv: Array, root: int) -> Call:
        call, topology = self._comm.scatter, self._topology
        return lambda: call(send, root, out=recv, topology=topology)

    def alltoall(self, send: Array, recv: Array) -> Call:
        call, topology = self._comm.alltoall, self._topology
        return lambda: call(send, recv, topology=topology)


def operators() -> tuple[str, ...]:
    """The available operators."""
    names: tuple[str, ...] = importlib.import_module("pycollective.comm.arguments.operators").NAMES
    return names


def find_topology(text: str) -> Any | None:
    """The topology denoted by a name or FILE.py:NAME; None for "default", the library's own choice.

    Raises pycollective.TopologyError (a ValueError) if there is none.
    """
    if text in ("", "default"):
        return None
    registry = importlib.import_module("pycollective.schedule.language.registry")
    return registry.find(text)


def topologies_of(collective: str) -> list[str]:
    """The registered topologies that implement a collective, by name."""
    registry = importlib.import_module("pycollective.schedule.language.registry")
    return [row.name for row in registry.describe() if collective in row.collectives]


def has(text: str, collective: str) -> bool:
    """Whether the topology denoted by a text implements a collective (the default always does)."""
    topology = find_topology(text)
    registry = importlib.import_module("pycollective.schedule.language.registry")
    return topology is None or collective in registry.info(topology).collectives


def unsupported(text: str, ranks: int) -> str:
    """Why a topology does not support this many ranks; empty if it does."""
    topology = find_topology(text)
    registry = importlib.import_module("pycollective.schedule.language.registry")
    try:
        registry.check_ranks("direct" if topology is None else topology, ranks)
    except ValueError as error:  # a TopologyError
        return str(error)
    return ""

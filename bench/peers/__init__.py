"""The libraries that a sweep compares, each with the same small interface.

A method takes the arrays it will work on and returns a *call*: a function without arguments that performs the
collective once and returns when it has completed.  Whatever a library can prepare (buffer descriptions,
operators, wrapped tensors) it prepares before it returns the call, so the timed loop contains only the
library itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from ..workload.cases import BARRIER

if TYPE_CHECKING:
    from pycollective.graphs import Graph

    from ..ranks.world import World
    from ..workload.cases import Case

__all__ = ["MPIS", "PEERS", "Array", "Call", "Peer", "PeerUnavailable", "mpi_of", "open_peer", "prepare"]

PEERS = dict.fromkeys(("mpi", "openmpi", "mpich", "impi"), "mpi") | {
    name: name for name in ("gloo", "oneccl", "sockets")
}
"""The supported libraries, and the module of each."""

MPIS = tuple(name for name, module in PEERS.items() if module == "mpi")
"""Those of which a process can use only one. "mpi" is the one that mpi4py uses."""


def mpi_of(name: str) -> str:
    """The MPI whose mpirun has to start the ranks on which a peer is measured; empty if any launcher will do."""
    return "impi" if name == "oneccl" else name if name in MPIS else ""


Array = NDArray[Any]
Call = Callable[[], object]


class PeerUnavailable(Exception):
    """A library that is unavailable here; the message has the reason."""


class Peer(Protocol):
    """One library (for ours: one topology) on all ranks of the world.

    Arrays are flat.  If ``send is recv`` the collective works in place.  ``root`` and ``op`` are named
    as in our own API.  Every method is collective.
    """

    name: str
    version: str
    always_in_place: frozenset[str]
    """Collectives that the library supports in place only."""

    checked: bool
    """False for a yardstick whose output is not a result."""

    def supports(self, case: Case) -> bool:
        """Whether the library has this collective for this type and operator."""

    def allreduce(self, send: Array, recv: Array, op: str) -> Call: ...

    def scan(self, send: Array, recv: Array, op: str) -> Call: ...

    def exscan(self, send: Array, recv: Array, op: str) -> Call: ...

    def mix(self, send: Array, recv: Array, graph: Graph) -> Call: ...

    def broadcast(self, buffer: Array, root: int) -> Call: ...

    def reduce(self, send: Array, recv: Array, op: str, root: int) -> Call: ...

    def reduce_scatter(self, send: Array, recv: Array, op: str) -> Call: ...

    def allgather(self, send: Array, recv: Array) -> Call: ...

    def gather(self, send: Array, recv: Array, root: int) -> Call: ...

    def scatter(self, send: Array, recv: Array, root: int) -> Call: ...

    def alltoall(self, send: Array, recv: Array) -> Call: ...

    def sendrecv(self, send: Array, recv: Array) -> Call:
        """A message there and one back: see ``cases.pair_partner``.  The even rank sends first."""

    def barrier(self) -> Call: ...


def prepare(peer: Peer, case: Case, send: Array, recv: Array) -> Call:
    """The peer's call for a case on these arrays (broadcast works on ``recv``)."""
    row = case.kind
    if case.collective == BARRIER:
        return peer.barrier()
    arguments: list[Any] = [recv] if row.single_buffer else [send, recv]
    if row.reduces:
        arguments.append(case.op)
    if row.weighted:
        arguments.append(case.graph)
    if row.rooted:
        arguments.append(case.root)
    made: Call = getattr(peer, case.collective)(*arguments)
    return made


def open_peer(name: str, world: World) -> Peer:
    """Start another library on all ranks.

    ``mpi`` is the MPI that mpi4py uses; ``openmpi``, ``mpich`` and ``impi`` (Intel MPI) require that one, and
    ``oneccl`` Intel MPI.  Raises :class:`PeerUnavailable` if it is not installed or is another one, ValueError for
    an unknown name.
    """
    if name not in PEERS:
        raise ValueError(f"unknown peer {name!r}; there are {', '.join(PEERS)}")
    # imported by name, so that a sweep without peers needs neither mpi4py nor torch
    peer: Peer = importlib.import_module(f".{PEERS[name]}", __package__).open(world)
    if name in MPIS[1:] and peer.name != name:
        raise PeerUnavailable(f"{name} was requested, but mpi4py uses {peer.version}")
    return peer

"""The libraries that a sweep compares, each with the same small interface.

A method takes the arrays it will work on and returns a *call*: a function without arguments that performs the
collective once and returns when it has completed.  Whatever a library can prepare (buffer descriptions,
operators, wrapped tensors) it prepares before it returns the call, so the timed loop contains only the
library itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..ranks.world import World, first_problem
from ..workload.cases import BARRIER, pair_partner

if TYPE_CHECKING:
    from ..workload.cases import Case

__all__ = [
    "MPIS",
    "PEERS",
    "Array",
    "Call",
    "Peer",
    "PeerUnavailable",
    "mpi_of",
    "open_peer",
    "open_peers",
    "prepare",
    "round_trip",
]

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


class Peer:
    """One library (for ours: one topology) on all ranks of the world.

    It has a method for each call that it supports, under that call's name and with the arguments of `prepare`; all are
    collective.  Arrays are flat.  If ``send is recv`` the collective works in place.  ``root`` and ``op`` are named as
    in our own API.
    """

    name: str
    version = ""
    always_in_place: frozenset[str] = frozenset()
    """Collectives that the library supports in place only."""

    checked = True
    """False for a yardstick whose output is not a result."""

    def supports(self, case: Case) -> bool:
        """Return whether the library has this collective for this type and operator."""
        raise NotImplementedError

    def close(self) -> None:
        """Collective, after the last call."""


def prepare(peer: Peer, case: Case, send: Array, recv: Array) -> Call:
    """The peer's call for a case on these arrays (broadcast works on ``recv``)."""
    row = case.kind
    arguments: list[Any] = [] if case.collective == BARRIER else [recv] if row.single_buffer else [send, recv]
    if row.reduces:
        arguments.append(case.op)
    if row.weighted:
        arguments.append(case.graph)
    if row.rooted:
        arguments.append(case.root)
    made: Call = getattr(peer, case.collective)(*arguments)
    return made


def round_trip(
    rank: int, ranks: int, send: Callable[..., object], source: Any, recv: Callable[..., object], target: Any
) -> Call:
    """``sendrecv``: send(source, partner) and recv(target, partner); the even rank sends first."""
    partner = pair_partner(rank, ranks)
    if partner is None:
        return lambda: None

    def there_and_back() -> None:
        send(source, partner)
        recv(target, partner)

    def back_and_there() -> None:
        recv(target, partner)
        send(source, partner)

    return there_and_back if rank < partner else back_and_there


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


def open_peers(names: Sequence[str], world: World, emit: Callable[[dict[str, Any]], None]) -> dict[str, Peer]:
    """The libraries that every rank could open, by the requested name; each library once; notes for the others."""
    peers: dict[str, Peer] = {}
    for name in names:
        problem = ""
        try:
            peer = open_peer(name, world)
        except PeerUnavailable as error:
            problem = str(error)
        if problem := first_problem(world, problem):
            emit({"kind": "note", "text": f"without {name}: {problem}"})
        elif peer.name not in [other.name for other in peers.values()]:
            peers[name] = peer
    return peers

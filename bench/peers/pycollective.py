"""Our own collectives: one peer for each topology, all on the same communicator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pycollective.cli.units import parse_size
from pycollective.comm.tuning import RULES, Choice
from pycollective.schedule.language import registry

from . import Array, Call, Peer, round_trip

if TYPE_CHECKING:
    from pycollective.graphs import Graph

    from ..workload.cases import Case

__all__ = [
    "PycollectivePeer",
    "choice_in",
    "find_topology",
    "has",
    "operators",
    "topologies_of",
    "unsupported",
    "written",
]


class PycollectivePeer(Peer):
    """One topology; None leaves the choice to the library.  The arrays determine windows or staging."""

    name = "pycollective"

    def __init__(self, comm: Any, topology: Any | None) -> None:
        self._comm, self._topology = comm, topology

    def supports(self, case: Case) -> bool:
        return True  # unsupported cases fail at the first call

    def _made(self, call: Any, arguments: tuple[Any, ...], op: str = "sum") -> Call:
        """Make the call as it is usually written: no cost of options that are not used."""
        topology = self._topology
        if op != "sum":
            return lambda: call(*arguments, op=op, topology=topology)
        if topology is not None:
            return lambda: call(*arguments, topology=topology)
        if len(arguments) == 2:
            x, out = arguments
            return lambda: call(x, out)
        x, root, out = arguments
        return lambda: call(x, root, out)

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        return self._made(self._comm.allreduce, (send, recv), op)

    def scan(self, send: Array, recv: Array, op: str) -> Call:
        return self._made(self._comm.scan, (send, recv), op)

    def exscan(self, send: Array, recv: Array, op: str) -> Call:
        return self._made(self._comm.exscan, (send, recv), op)

    def reduce_scatter(self, send: Array, recv: Array, op: str) -> Call:
        return self._made(self._comm.reduce_scatter, (send, recv), op)

    def mix(self, send: Array, recv: Array, graph: Graph) -> Call:
        call = self._comm.mix
        return lambda: call(send, graph, 0, recv)

    def broadcast(self, buffer: Array, root: int) -> Call:
        return self._made(self._comm.broadcast, (buffer, root, buffer))

    def reduce(self, send: Array, recv: Array, op: str, root: int) -> Call:
        return self._made(self._comm.reduce, (send, root, recv), op)

    def allgather(self, send: Array, recv: Array) -> Call:
        return self._made(self._comm.allgather, (send, recv))

    def gather(self, send: Array, recv: Array, root: int) -> Call:
        return self._made(self._comm.gather, (send, root, recv if self._comm.rank == root else None))

    def scatter(self, send: Array, recv: Array, root: int) -> Call:
        return self._made(self._comm.scatter, (send, root, recv))

    def alltoall(self, send: Array, recv: Array) -> Call:
        return self._made(self._comm.alltoall, (send, recv))

    def sendrecv(self, send: Array, recv: Array) -> Call:
        comm = self._comm
        return round_trip(comm.rank, comm.size, comm.send, send, comm.recv, recv)

    def barrier(self) -> Call:
        call: Call = self._comm.barrier
        return call


def operators() -> tuple[str, ...]:
    """The available operators."""
    names: tuple[str, ...] = importlib.import_module("pycollective.comm.arguments.operators").NAMES
    return names


def find_topology(text: str) -> Any | None:
    """The topology denoted by a name or FILE.py:NAME; None for "default", the library's own choice.

    A Choice for "untuned", the default without PYCOLLECTIVE_TUNING, and for NAME/small, NAME/large and NAME/large/64K:
    a variant, and the bytes of a tile.  Raises pycollective.TopologyError (a ValueError) if there is none.
    """
    if text in ("", "default"):
        return None
    if text == _UNTUNED or ("/" in text and ".py" not in text):
        return choice_in(text)
    return registry.find(text)


_UNTUNED = "untuned"


def choice_in(text: str) -> Choice:
    """The Choice that `written` has written; ValueError for another text."""
    if text == _UNTUNED:
        return RULES
    name, variant, *tile = text.split("/")
    if variant not in ("small", "large") or len(tile) > 1:
        raise ValueError(f"{text!r}: write NAME/small, NAME/large, or NAME/large/64K with the bytes of a tile")
    return Choice(registry.label(name), variant == "small", *map(parse_size, tile))


def written(choice: Choice) -> str:
    """The text for a Choice, which `find_topology` reads."""
    if choice == RULES:
        return _UNTUNED
    words = [choice.topology, "small" if choice.small else "large", *([str(choice.tile)] if choice.tile else [])]
    return "/".join(words)


def _instance(text: str) -> Any:
    """The topology itself, of a Choice as well."""
    found = find_topology(text)
    return (found.topology if isinstance(found, Choice) else found) or "direct"


def topologies_of(collective: str) -> list[str]:
    """The registered topologies that implement a collective, by name."""
    return [row.name for row in registry.describe() if collective in row.collectives]


def has(text: str, collective: str) -> bool:
    """Return whether the topology denoted by a text implements a collective (the default always does)."""
    return collective in registry.info(_instance(text)).collectives


def unsupported(text: str, ranks: int) -> str:
    """Why a topology does not support this many ranks; empty if it does."""
    try:
        registry.check_ranks(_instance(text), ranks)
    except ValueError as error:  # a TopologyError
        return str(error)
    return ""

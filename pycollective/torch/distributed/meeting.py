"""How the ranks of a process group find each other: through torch's store, whoever started them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pycollective.comm.bootstrap import launcher
from pycollective.comm.communicator import Communicator
from pycollective.comm.mpi_bootstrap import import_mpi
from pycollective.comm.nodes import Nodes, node_key, place
from pycollective.comm.rendezvous import name_ranks
from pycollective.comm.teams import build_team
from pycollective.errors import BootstrapError

Exchange = Callable[[bytes], list[bytes]]


class StoreExchange:
    """A collective allgather of bytes over a store; each `part` of a group has keys of its own.

    Args:
        store: of this process group alone (a PrefixStore).
        rank, size: in the process group.
        part: what the exchange is for.
        timeout: seconds to wait for the others in each call.

    Raises (the call):
        BootstrapError: ranks that have not come in time, named; or a store that is gone.
    """

    def __init__(self, store: Any, rank: int, size: int, part: str, timeout: float) -> None:
        self._store, self._rank, self._size, self._timeout = store, rank, size, timeout
        # A store may outlive a group, and a group of the same name may come after it: torchrun's agent keeps one for
        # the whole job. Every rank counts the times that it has met here, and they all count the same.
        self._prefix = f"pycollective/{part}/{store.add(f'pycollective/{part}/{rank}', 1)}"
        self._calls = 0

    def __call__(self, data: bytes) -> list[bytes]:
        prefix = f"{self._prefix}/{self._calls}"
        self._calls += 1
        self._store.set(f"{prefix}/{self._rank}", data + b".")  # no store takes an empty value
        keys = [f"{prefix}/{rank}" for rank in range(self._size)]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise BootstrapError(self._missing(keys, error)) from None
        return [bytes(self._store.get(key))[:-1] for key in keys]

    def _missing(self, keys: Sequence[str], error: Exception) -> str:
        try:
            late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            late = []
        if not late:
            return f"the process group's store cannot be reached: {error}"
        have = "has" if len(late) == 1 else "have"
        return f"{name_ranks(late)} of {self._size} {have} not joined the process group within {self._timeout:g} s"


def meet(exchange: StoreExchange, rank: int, world_ranks: Sequence[int], name: str) -> Communicator:
    """Collective: a communicator of a process group's ranks.

    Args:
        exchange: among them.
        rank: of this process among them.
        world_ranks: their global ranks, for messages.
        name: for messages.

    Raises:
        BootstrapError: see StoreExchange; also if the ranks are on several hosts and no mpirun started them.
        CommunicatorError: no memory can be shared.
    """
    nodes = place(exchange(node_key()), rank)
    if nodes.count > 1:
        return _across_hosts(exchange, nodes, world_ranks, name)
    team = build_team(exchange, rank, range(len(world_ranks)), world_ranks, name, threads=False)
    assert team is not None  # every rank is a member
    return Communicator(team, nodes=nodes, world_ranks=world_ranks, name=name)


def _across_hosts(exchange: StoreExchange, nodes: Nodes, world_ranks: Sequence[int], name: str) -> Communicator:
    from pycollective.comm.mpi_rail import MpiRail
    from pycollective.comm.rail_calls import RailCalls

    under_mpi = launcher(os.environ) == "mpi"
    if not all(said == b"mpi" for said in exchange(b"mpi" if under_mpi else b"")):
        raise BootstrapError(f"the ranks of this process group are on {nodes.count} hosts: start them with mpirun")
    rail = RailCalls(MpiRail(mpi_group(exchange)))
    return Communicator(rail, nodes=nodes, world_ranks=world_ranks, name=name)


def mpi_group(exchange: StoreExchange) -> Any:
    """Collective: an mpi4py communicator of the process group's ranks, who tell each other their numbers in MPI."""
    mpi = import_mpi()
    numbers = [int(text) for text in exchange(str(mpi.COMM_WORLD.Get_rank()).encode())]
    return mpi.COMM_WORLD.Create_group(mpi.COMM_WORLD.Get_group().Incl(numbers))

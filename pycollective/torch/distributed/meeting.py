"""How the ranks of a process group find each other: through torch's store, under every launcher.

Any process that can reach torch's store can write to it. So ranks take only harmless values from it: which ranks share
a host, random numbers that become part of a socket name, and ranks in MPI. All further data is exchanged over that
socket, with processes of the same user, or over MPI. If another process has changed a value in the store, the ranks
fail to connect; they never connect to others, since the name also depends on what each of them knows by itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from pycollective.comm.bootstrap.detection import launcher
from pycollective.comm.bootstrap.mpi import gather_among, import_mpi
from pycollective.comm.bootstrap.nodes import node_key, place
from pycollective.comm.bootstrap.one_host import SocketBootstrap
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.communicator import Communicator
from pycollective.comm.group import Group
from pycollective.comm.host import team as one_host
from pycollective.comm.host.segments import Exchange
from pycollective.errors import BootstrapError

T = TypeVar("T")
_ENTRY = re.compile(rb"([0-9a-f]{32}) ([0-9a-f]{32})")
"""What a rank puts into the store: a digest of its host and a random number."""
_MPI_RANK = re.compile(rb"[0-9]{1,9}|none")
_JOB = ("PYCOLLECTIVE_RENDEZVOUS", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID")
"""Variables by which a launcher distinguishes its jobs: the same on all ranks."""


class StoreExchange:
    """A collective allgather of short texts over a store; each `part` of a group has its own keys.

    Args:
        store: of this process group only (a PrefixStore).
        rank, size: in the process group.
        part: what the exchange is for.
        name: of the group, for messages.
        timeout: seconds to wait for the others in each call.

    Attributes:
        turn: how often this rank has created such an exchange; the same on all ranks.

    Raises (the call):
        BootstrapError: ranks have not joined in time, names them; the store cannot be reached, or its values are not
            those that the ranks stored.
    """

    def __init__(self, store: Any, rank: int, size: int, part: str, name: str, timeout: float) -> None:
        self._store, self._rank, self._size, self._name, self._timeout = store, rank, size, name, timeout
        # A store may outlive a group, and be used by a later group of the same name: torchrun's agent keeps one for the
        # whole job. Every rank counts its exchanges, and all counts are equal.
        self.turn = int(store.add(f"pycollective/{part}/{rank}", 1))
        self._prefix = f"pycollective/{part}/{self.turn}"
        self._calls = 0

    def __call__(self, text: bytes, form: re.Pattern[bytes]) -> list[bytes]:
        """Every rank's `text`, each checked against the pattern `form`."""
        prefix = f"{self._prefix}/{self._calls}"
        self._calls += 1
        self._store.set(f"{prefix}/{self._rank}", text)
        keys = [f"{prefix}/{rank}" for rank in range(self._size)]
        try:
            self._store.wait(keys, timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise BootstrapError(self._missing(keys, error)) from None
        texts = [bytes(self._store.get(key)) for key in keys]
        wrong = [rank for rank, one in enumerate(texts) if not form.fullmatch(one)]
        if wrong or texts[self._rank] != text:
            ranks = name_ranks(wrong or [self._rank])
            raise BootstrapError(f"torch's store does not hold the values that {ranks} of {self._name} stored")
        return texts

    def _missing(self, keys: Sequence[str], error: Exception) -> str:
        try:
            late = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except RuntimeError:
            late = []
        if not late:
            return f"the process group's store cannot be reached: {error}"
        have = "has" if len(late) == 1 else "have"
        return f"{name_ranks(late)} of {self._size} {have} not joined the process group within {self._timeout:g} s"


def meet(
    store: Any,
    rank: int,
    world_ranks: Sequence[int],
    name: str,
    timeout: float,
    part: str,
    also: Callable[[Exchange], T] | None = None,
) -> tuple[Communicator, T | None]:
    """Collective: connect a process group's ranks.

    Args:
        store: of this process group only (a PrefixStore).
        rank: of this process in the group.
        world_ranks: the global ranks of the group, in its order.
        name: of the group, for messages.
        timeout: seconds to wait for the others.
        part: what the communicator is for; a group may have several.
        also: called with an exchange among the ranks while they are connected, if they are on one host.

    Returns:
        the communicator, and what `also` returned.

    Raises:
        BootstrapError: ranks have not joined in time, names them; the store cannot be reached, or its values are not
            those that the ranks stored; ranks on several hosts that were not started by mpirun.
        CommunicatorError: no memory can be shared.
    """
    exchange = StoreExchange(store, rank, len(world_ranks), part, name, timeout)
    host = hashlib.sha256(node_key()).hexdigest()[:32]
    texts = exchange(f"{host} {secrets.token_hex(16)}".encode(), _ENTRY)
    key = _key(store, [name, part, str(exchange.turn), *map(str, world_ranks)], texts)
    nodes = place([text.split()[0] for text in texts], rank)
    group = Group(nodes, tuple(world_ranks), name)
    if nodes.count > 1:
        return _across_hosts(exchange, key, group, timeout), None
    hint = f"according to torch's store, all ranks of {name} have joined"
    meeting = SocketBootstrap(f"torch/{key}", rank, len(world_ranks), kind="torch", timeout=timeout, hint=hint)
    try:
        backend = one_host.connect(meeting.allgather, rank, range(group.size), group)
        made = also(meeting.allgather) if also is not None else None
    finally:
        meeting.close()
    assert backend is not None  # every rank is a member
    return Communicator(backend), made


def _key(store: Any, known: Sequence[str], texts: Sequence[bytes]) -> str:
    """32 digits that only these ranks of this job derive, from what each knows and from the values in the store."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    job = [str(os.geteuid()), str(getattr(store, "port", "")), *(os.environ.get(name, "") for name in _JOB)]
    text = "\0".join([*job, *known]).encode() + b"\0" + b"\0".join(texts)
    return hashlib.sha256(text).hexdigest()[:32]


def _across_hosts(exchange: StoreExchange, key: str, group: Group, timeout: float) -> Communicator:
    """Connect over MPI. The store provides the ranks in MPI, which are used once all ranks have confirmed them."""
    from pycollective.comm.hosts.mpi_rail import MpiRail
    from pycollective.comm.hosts.team import HostsTeam

    name = group.name
    world = import_mpi().COMM_WORLD if launcher(os.environ) == "mpi" else None
    texts = exchange(b"none" if world is None else str(world.Get_rank()).encode(), _MPI_RANK)
    if world is None or b"none" in texts:
        raise BootstrapError(f"the ranks of {name} are on {group.nodes.count} hosts: start them with mpirun")
    numbers = [int(text) for text in texts]
    if len(set(numbers)) < len(numbers) or max(numbers) >= world.Get_size():
        raise BootstrapError(f"torch's store has other ranks of {name} than MPI: {name_ranks(numbers)}")
    mine = f"{key} {numbers}".encode()
    tag = 1 + int(key[:4], 16) % (1 << 14)  # per group, as another thread may be connecting another one
    if set(gather_among(world, numbers, group.rank, mine, timeout, tag, f"joined {name}")) != {mine}:
        raise BootstrapError(f"torch's store has different values for the ranks of {name}")
    made = world.Create_group(world.Get_group().Incl(numbers), tag)
    return Communicator(HostsTeam(MpiRail(made), group))

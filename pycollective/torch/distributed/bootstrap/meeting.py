"""How the ranks of a process group find each other: through torch's store, under every launcher.

Any process that can reach torch's store can write to it. So ranks take only harmless values from it: which ranks share
a host, random numbers that become part of a socket name, and across hosts what across_hosts.py describes. All further
data is exchanged over that socket, with processes of the same user, or over connections that know the job's token. If
another process has changed a value in the store, the ranks fail to connect; they never connect to others, since the
name also depends on what each of them knows by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pycollective.comm.bootstrap.nodes import node_key, place
from pycollective.comm.bootstrap.one_host import SocketBootstrap
from pycollective.comm.bootstrap.stores import StoreExchange, TorchStore
from pycollective.comm.communicator import Communicator
from pycollective.comm.group import Group
from pycollective.comm.host import team as one_host
from pycollective.comm.host.segments import Exchange
from pycollective.errors import BootstrapError

if TYPE_CHECKING:
    from pycollective.comm.hosts.network import Network

T = TypeVar("T")
_ENTRY = re.compile(rb"([0-9a-f]{32}) ([0-9a-f]{32}) ([0-9]{1,10})")
"""What a rank puts into the store: a digest of its host, a random number, and its user."""
_JOB = ("PYCOLLECTIVE_RENDEZVOUS", "TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "SLURM_JOB_ID")
"""Variables by which a launcher distinguishes its jobs: the same on all ranks."""


def meet(
    store: Any,
    rank: int,
    world_ranks: Sequence[int],
    name: str,
    timeout: float,
    part: str,
    also: Callable[[Exchange, Network | None], T],
) -> tuple[Communicator, T]:
    """Collective: connect a process group's ranks.

    Args:
        store: of this process group only (a PrefixStore).
        rank: of this process in the group.
        world_ranks: the global ranks of the group, in its order.
        name: of the group, for messages.
        timeout: seconds to wait for the others.
        part: what the communicator is for; a group may have several.
        also: called while the ranks are connected, with an exchange among them and, if they are on several hosts, this
            process's network.

    Returns:
        the communicator, and what `also` returned.

    Raises:
        BootstrapError: ranks have not joined in time, names them; the store cannot be reached, or its values are not
            those that the ranks stored; ranks of different hosts cannot reach each other, or have different tokens.
        CommunicatorError: no memory can be shared.
    """
    exchange, turn = _exchange(store, rank, len(world_ranks), name, timeout, part)
    try:
        return _connect(exchange, [name, part, str(turn), *map(str, world_ranks)], store, world_ranks, timeout, also)
    except Exception as error:  # which the other ranks learn, unless one of them has failed before
        with contextlib.suppress(BootstrapError):  # the store is out of reach too
            if not exchange.trouble():
                exchange.set_trouble(f"rank {exchange.rank} of {name} has failed: {error}")
        raise


def _connect(
    exchange: StoreExchange,
    known: Sequence[str],
    store: Any,
    world_ranks: Sequence[int],
    timeout: float,
    also: Callable[[Exchange, Network | None], T],
) -> tuple[Communicator, T]:
    """`known`: what each rank of the group knows by itself; the group's name first."""
    rank, name = exchange.rank, known[0]
    host = hashlib.sha256(node_key()).hexdigest()[:32]
    texts = exchange.allgather(f"{host} {secrets.token_hex(16)} {os.geteuid()}".encode(), form=_ENTRY)
    _require_one_user([text.split() for text in texts], name)
    nodes = place([text.split()[0] for text in texts], rank)
    group = Group(nodes, tuple(world_ranks), name)
    if nodes.count > 1:
        from pycollective.torch.distributed.bootstrap import across_hosts

        return across_hosts.connect(exchange, group, _digest(known, texts), timeout, also)
    key = _digest([*_job(store), *known], texts).hex()[:32]
    hint = f"according to torch's store, all ranks of {name} have joined"
    meeting = SocketBootstrap(
        f"torch/{key}", rank, len(world_ranks), kind="torch", timeout=timeout, hint=hint, look=exchange.trouble
    )
    with meeting:
        backend = one_host.connect(meeting.allgather, rank, range(group.size), group)
        made = also(meeting.allgather, None)
    assert backend is not None  # every rank is a member
    return Communicator(backend), made


def _exchange(store: Any, rank: int, size: int, name: str, timeout: float, part: str) -> tuple[StoreExchange, int]:
    """An exchange with keys of its own, and how many this rank has made for this part: as many as the others.

    A store may outlive a group, and be used by a later group of the same name: torchrun's agent keeps one for the whole
    job.
    """
    ours = TorchStore(store)
    try:
        turn = ours.count(f"pycollective-{part}-{rank}")
    except OSError as error:
        raise BootstrapError(f"rank {rank} of {name} cannot reach {ours.where}: {error}") from error
    return StoreExchange(ours, rank, size, "torch", f"pycollective-{part}-{turn}", timeout, name), turn


def _require_one_user(entries: Sequence[Sequence[bytes]], name: str) -> None:
    """Ranks of one host share memory, which other users cannot open."""
    first: dict[bytes, tuple[int, bytes]] = {}
    for rank, (host, _, user) in enumerate(entries):
        other, its = first.setdefault(host, (rank, user))
        if its != user:
            raise BootstrapError(
                f"ranks {other} and {rank} of {name} are on one host, but belong to two users (uid {int(its)} and "
                f"{int(user)}), who cannot share memory"
            )


def _job(store: Any) -> list[str]:
    """What distinguishes the job from others on its host."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return [str(os.geteuid()), str(getattr(store, "port", "")), *(os.environ.get(name, "") for name in _JOB)]


def _digest(known: Sequence[str], texts: Sequence[bytes]) -> bytes:
    """What only these ranks derive, from what each knows and from the values in the store."""
    return hashlib.sha256("\0".join(known).encode() + b"\0" + b"\0".join(texts)).digest()

"""How the ranks of a process group on several hosts connect: by TCP, where each proves that it knows the job's token.

Through torch's store they learn only where the others listen, and ranks in MPI. Another process that changes these can
only make connecting fail. The token is taken from the store only if no rank has a better source.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

from pycollective import settings
from pycollective.comm import world
from pycollective.comm.bootstrap.detection import init_timeout, launcher
from pycollective.comm.bootstrap.mpi import gather_among, import_mpi
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.bootstrap.sockets.authentication import TOKEN_BYTES, digest, parse_token
from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.comm.bootstrap.sockets.this_host import host_name
from pycollective.comm.bootstrap.stores import StoreExchange
from pycollective.comm.bootstrap.tcp import TcpBootstrap, listen
from pycollective.comm.communicator import Communicator
from pycollective.comm.group import Group
from pycollective.comm.host.segments import Exchange
from pycollective.comm.hosts import team
from pycollective.comm.hosts.network import Network, open_network
from pycollective.errors import BootstrapError

T = TypeVar("T")
_SOURCE = re.compile(rb"(?:world|set) [0-9a-f]{64}|mpi [0-9]{1,9}|none")
_TOKEN = re.compile(rb"[0-9a-f]{%d}|" % (2 * TOKEN_BYTES))
_BYTES = re.compile(rb"(?:[0-9a-f]{2}){0,32768}")


def connect(
    store: StoreExchange, group: Group, name: bytes, timeout: float, also: Callable[[Exchange, Network], T]
) -> tuple[Communicator, T]:
    """Collective: the communicator of a group whose ranks are on several hosts.

    Args:
        store: an exchange among the ranks.
        name: the same on all ranks and used once; other processes may know it.
        timeout: seconds to wait for the others.
        also: called while the ranks are connected, with a trustworthy exchange among them.

    Returns:
        the communicator, and what `also` returned.

    Raises:
        BootstrapError: the ranks have different tokens; ranks cannot be reached: with address and reason.
    """
    token, network = _token(store, group, name, timeout)
    try:
        network = network or open_network(_Addresses(store, group, token))
    except ValueError:
        raise _changed("the addresses of the ranks", group) from None
    where = _publish(store, group, network.listener.address[0])
    hint = f"according to torch's store, all ranks of {group.name} have joined"
    meeting = TcpBootstrap(
        group.rank, group.size, kind="torch", job=name.hex(), token=token, meet=lambda: where,
        timeout=min(timeout, init_timeout()), hint=hint,
    )  # fmt: skip
    with meeting:
        backend = team.connect(meeting.allgather, group.rank, range(group.size), group, network)
        made = also(meeting.allgather, network)
    assert backend is not None  # every rank is a member
    return Communicator(backend), made


class _Addresses:
    """A Bootstrap through torch's store: for addresses only."""

    kind = "torch"

    def __init__(self, store: StoreExchange, group: Group, token: bytes) -> None:
        self.rank, self.size, self.token, self._store = group.rank, group.size, token, store

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        return [bytes.fromhex(text.decode()) for text in self._store.allgather(data.hex().encode(), form=_BYTES)]

    def close(self) -> None:
        pass


def _publish(store: StoreExchange, group: Group, address: str) -> socket.socket | Endpoint:
    """Collective: on rank 0 a listening socket, on the others where it listens."""
    listener = listen(address) if group.rank == 0 else None
    mine = Endpoint(host_name(), *listener.getsockname()[:2]).pack() if listener is not None else b""
    try:
        texts = store.allgather(mine.hex().encode(), form=_BYTES)
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    if listener is not None:
        return listener
    there = Endpoint.unpack(bytes.fromhex(texts[0].decode()))
    try:
        ipaddress.ip_address(there.address)  # names are not resolved
        if not 0 < there.port < 1 << 16:
            raise ValueError
    except ValueError:
        raise _changed("the address of rank 0", group) from None
    return there


def _changed(what: str, group: Group) -> BootstrapError:
    return BootstrapError(f"torch's store does not hold {what} of {group.name}: another process has changed it")


# -- the token ---------------------------------------------------------------------------------------------------------


def _token(store: StoreExchange, group: Group, name: bytes, timeout: float) -> tuple[bytes, Network | None]:
    """Collective: the job's token, and if the world spans hosts its network.

    A rank never takes a token from the store if it has another source.
    """
    network, own, source = world.world().backend.network if world.is_initialized() else None, b"", "none"
    if network is not None:
        own = network.listener.token
        source = f"world {digest(own, name).hex()}"
    elif launcher(os.environ) == "mpi":
        source = f"mpi {import_mpi().COMM_WORLD.Get_rank()}"
    elif text := settings.read("PYCOLLECTIVE_TOKEN"):
        own = parse_token(text)
        source = f"set {digest(own, name).hex()}"
    sources = [text.decode() for text in store.allgather(source.encode(), form=_SOURCE)]
    kinds = {text.split()[0] for text in sources}
    if kinds == {"mpi"}:
        return _token_over_mpi(group, [int(text.split()[1]) for text in sources], name, timeout), None
    if set(sources) != {source}:
        raise BootstrapError(_disagreement(group, sources, kinds))
    if own:
        return own, network
    mine = secrets.token_hex(TOKEN_BYTES) if group.rank == 0 else ""
    token = bytes.fromhex(store.allgather(mine.encode(), form=_TOKEN)[0].decode())
    if not token:
        raise _changed("the token", group)
    return token, None


def _disagreement(group: Group, sources: Sequence[str], kinds: set[str]) -> str:
    begin = f"the ranks of {group.name} are on {group.nodes.count} hosts"
    if kinds == {"set", "none"}:
        without = [rank for rank, source in enumerate(sources) if source == "none"]
        return f"{begin}, and PYCOLLECTIVE_TOKEN is not set for {name_ranks(without)}: set it on all hosts"
    if len(kinds) == 1:
        other = [rank for rank, source in enumerate(sources) if source != sources[0]]
        return f"{begin}, and {name_ranks(other)} of it have another token than rank 0: PYCOLLECTIVE_TOKEN differs"
    return f"{begin}, and were not started in the same way: {', '.join(sorted(kinds))}"


def _token_over_mpi(group: Group, numbers: Sequence[int], name: bytes, timeout: float) -> bytes:
    """Collective: one that the first rank distributes.

    Args:
        numbers: the ranks in MPI according to torch's store, which are used once all ranks have confirmed them.
    """
    mpi = import_mpi().COMM_WORLD
    if len(set(numbers)) < len(numbers) or max(numbers) >= mpi.Get_size():
        raise BootstrapError(f"torch's store has other ranks of {group.name} than MPI: {name_ranks(numbers)}")
    tag = 1 + name[0] + (name[1] << 6)  # per group, as another thread may be connecting another one
    text = settings.read("PYCOLLECTIVE_TOKEN")
    mine = pack([name, repr(list(numbers)).encode(), parse_token(text) if text else secrets.token_bytes(TOKEN_BYTES)])
    received = gather_among(mpi, numbers, group.rank, mine, timeout, tag, f"joined {group.name}")
    parts = [unpack(blob) for blob in received]
    if any(part[:2] != parts[0][:2] for part in parts):
        raise BootstrapError(f"torch's store has different values for the ranks of {group.name}")
    return parts[0][2]

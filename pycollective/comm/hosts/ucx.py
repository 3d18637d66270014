"""UCX (https://openucx.org) as the link between hosts: which ranks can use it, and how they connect.

The library is loaded at run time: with an RDMA device the system's first, which can use it, otherwise that of the
package `libucx-cu*`. Without PYCOLLECTIVE_LINK=ucx, hosts that have no RDMA device load nothing.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pycollective import _core, settings
from pycollective.comm.bootstrap.rendezvous import name_ranks
from pycollective.comm.bootstrap.sockets.frames import Reader, frame, receive
from pycollective.comm.bootstrap.sockets.interfaces import interfaces
from pycollective.comm.hosts.connections import has_ended
from pycollective.errors import BootstrapError

SETTING = "PYCOLLECTIVE_LINK"
AUTO, UCX, UCX_SHM = "auto", "ucx", "ucx-shm"
RDMA, SOCKETS, SHARED_MEMORY = "RDMA", "TCP", "shared memory"
"""What UCX's messages go over. Only with TCP a port is opened."""

_LIBRARY = "libucp.so.0"
_RDMA_DEVICES = Path("/sys/class/infiniband")
_TRANSPORTS = {RDMA: "ib,self", SOCKETS: "tcp,self", SHARED_MEMORY: "posix,self"}
# Shared memory is not mixed with the others: with it UCX does not report that a peer has died, which only our own
# connections do then. Nor is it CMA, with which a peer could write to memory that is not a buffer any more.
_RDMA_TRANSPORTS = ("rc_", "dc_", "ud_", "srd")  # the beginnings of their names
_SECRET_BYTES = 16
_MOST_BYTES = 1 << 20  # of an address
_LOOK_SECONDS, _GRACE_SECONDS = 0.1, 2.0


def offer(address: str) -> dict[str, Any]:
    """What this rank may and can use, for `choose`; JSON.

    Args:
        address: of this host, at which other ranks connect. UCX over TCP uses its interface only.
    """
    setting = settings.read(SETTING).lower()
    mine: dict[str, Any] = {"setting": setting, "version": "", "over": [], "problem": ""}
    may_use = [SHARED_MEMORY] if setting == UCX_SHM else [SOCKETS] if setting == UCX else []
    if setting in (AUTO, UCX) and _rdma_ports():
        may_use.insert(0, RDMA)
    problems = []
    for over in may_use:
        try:
            found = devices(over, address)
            if over != RDMA or any(each.startswith(_RDMA_TRANSPORTS) for each in found.transports):
                mine["over"].append(over)
            mine["version"] = found.version
        except OSError as error:
            problems.append(str(error))
    if may_use and not mine["over"]:
        mine["problem"] = "; ".join(dict.fromkeys(problems)) or "no RDMA transport"
    return mine


def choose(offers: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> str:
    """The link of a communicator, the same on all ranks: "" for TCP without UCX, else what UCX's messages go over.

    Args:
        offers, hosts: of each rank.

    Raises:
        BootstrapError: ranks have different settings, or UCX is demanded and cannot be used.
    """
    for rank, each in enumerate(offers):
        if each["setting"] != offers[0]["setting"]:
            raise BootstrapError(
                f"rank {rank} on host {hosts[rank]} has {SETTING}={each['setting']}, rank 0 on host {hosts[0]} has "
                f"{offers[0]['setting']}: all ranks need the same value"
            )
    same_version = len({each["version"] for each in offers}) == 1
    for over in (RDMA, SOCKETS, SHARED_MEMORY):
        if same_version and all(over in each["over"] for each in offers):
            return over
    if offers[0]["setting"] in (UCX, UCX_SHM):
        raise BootstrapError(f"{SETTING}={offers[0]['setting']}, but {_obstacle(offers, hosts)}")
    return ""


def _obstacle(offers: Sequence[Mapping[str, Any]], hosts: Sequence[str]) -> str:
    for rank, each in enumerate(offers):
        if each["problem"]:
            return f"rank {rank} on host {hosts[rank]} cannot use UCX: {each['problem']}"
    rank = next(r for r, each in enumerate(offers) if each["version"] != offers[0]["version"])
    return (
        f"rank {rank} on host {hosts[rank]} has UCX {offers[rank]['version']}, rank 0 on host {hosts[0]} has "
        f"{offers[0]['version']}: all ranks need the same version"
    )


def devices(over: str, address: str) -> _core.UcxDevices:
    """UCX's transports on this host, restricted to RDMA devices and, of TCP's, the interface with an address.

    Raises:
        OSError: UCX cannot be used; states what was tried.
    """
    options = []
    if not os.environ.get("UCX_TLS"):
        options.append(("TLS", _TRANSPORTS[over]))
    if not os.environ.get("UCX_NET_DEVICES") and over != SHARED_MEMORY:
        options.append(("NET_DEVICES", ",".join([*_rdma_ports(), _interface_of(address)])))
    tried = []
    for file in _files():
        try:
            return _core.UcxDevices(file, options)
        except OSError as error:
            tried.append(str(error))
    hint = "Debian's libucx0 or PyPI's libucx-cu13 provides it"
    raise OSError("; ".join([*dict.fromkeys(tried), hint]))


def describe(address: str) -> str:
    """UCX on this host in one line, for `doctor`.

    Raises:
        OSError: it cannot be used; states what was tried.
    """
    found = devices(SOCKETS, address)
    names = [*found.transports, *(devices(RDMA, address).transports if _rdma_ports() else ())]
    return f"UCX {found.version} from {found.path}: {', '.join(dict.fromkeys(names))}"


def name_of(over: str, address: str) -> str:
    if not over:
        return "TCP"
    found = devices(over, address)
    return f"UCX {found.version} ({', '.join(found.transports)})"


def connect(
    over: str, address: str, rank: int, connections: Mapping[int, socket.socket], hosts: Sequence[str], deadline: float
) -> _core.UcxWorker:
    """Collective among ranks that are connected with each other: the UCX links of this rank.

    Args:
        over: from `choose`. address: as for `offer`.
        connections: authenticated, with each rank on another host. They are not used afterwards.
        hosts: name of each rank's host.
        deadline: on the clock of time.monotonic().

    Raises:
        BootstrapError: UCX cannot be set up here, or a rank does not answer until the deadline.
    """
    here = f"rank {rank} on host {hosts[rank]}"
    try:
        worker = _core.UcxWorker(devices(over, address), rank, over == SHARED_MEMORY)
        expects = {peer: secrets.token_bytes(_SECRET_BYTES) for peer in connections}
        for peer, connection in connections.items():
            connection.settimeout(max(_LOOK_SECONDS, deadline - time.monotonic()))
            connection.sendall(frame(0, expects[peer] + worker.address))
        for peer, connection in connections.items():
            _, theirs = receive(connection, Reader(_MOST_BYTES), deadline)
            worker.connect(peer, theirs[_SECRET_BYTES:], theirs[:_SECRET_BYTES], expects[peer])
    except (OSError, EOFError, ValueError) as error:
        raise BootstrapError(f"{here} cannot set up UCX: {error or 'a rank has closed its connection'}") from None
    if missing := _meet(worker, connections, deadline):
        raise BootstrapError(
            f"{here} cannot reach {name_ranks(missing)} on host {hosts[missing[0]]} by UCX over {over} "
            f"({', '.join(devices(over, address).transports)}); {SETTING}=tcp does without it"
        )
    return worker


def _meet(worker: _core.UcxWorker, connections: Mapping[int, socket.socket], deadline: float) -> list[int]:
    """The ranks that do not answer until the deadline, or that have given up."""
    while missing := worker.synchronize(_LOOK_SECONDS):
        if time.monotonic() >= deadline:
            break
        if any(has_ended(connections[rank]) for rank in missing):  # an answer may still be on its way
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
    return missing


def connect_threads(over: str, address: str, pairs: Sequence[tuple[int, int]], size: int) -> list[_core.UcxWorker]:
    """Connect ranks that are threads of this process: each rank's links, with the other rank of each pair."""
    workers = [_core.UcxWorker(devices(over, address), rank, over == SHARED_MEMORY) for rank in range(size)]
    for pair in pairs:
        there, back = (secrets.token_bytes(_SECRET_BYTES) for _ in range(2))
        for (rank, peer), sends, expects in ((pair, there, back), (pair[::-1], back, there)):
            workers[rank].connect(peer, workers[peer].address, sends, expects)
    deadline = time.monotonic() + settings.read("PYCOLLECTIVE_INIT_TIMEOUT")
    while sum(len(worker.synchronize(0)) for worker in workers) > 0:
        if time.monotonic() >= deadline:
            raise BootstrapError("the virtual hosts cannot reach each other by UCX")
    return workers


def _files() -> list[str]:
    """Files of the library, in the order in which they are tried."""
    package = importlib.util.find_spec("libucx")
    folders = package.submodule_search_locations if package is not None else None
    of_package = [str(Path(folder) / "lib" / _LIBRARY) for folder in folders or ()]
    return [_LIBRARY, *of_package] if _rdma_ports() else [*of_package, _LIBRARY]


def _rdma_ports() -> list[str]:
    """RDMA ports as UCX names them: DEVICE:PORT."""
    return sorted(f"{port.parent.parent.name}:{port.name}" for port in _RDMA_DEVICES.glob("*/ports/*"))


def _interface_of(address: str) -> str:
    wanted = ipaddress.ip_address(address)
    for name, addresses in interfaces().items():
        if any(each.ip == wanted for each in addresses):
            return name
    raise OSError(f"UCX needs the address of an interface, which {address} is not")

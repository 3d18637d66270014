"""Provides torch with rank, size and store under launchers that it does not support: mpirun, `pycollective run`.

torch's store accepts values from any process that reaches its port. So the store created here listens on one address
only, the loopback if the job is on one host, and nothing critical is taken from any store (see meeting.py).
"""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pycollective.comm import world
from pycollective.comm.bootstrap import detection
from pycollective.comm.communicator import Communicator
from pycollective.errors import BootstrapError

SCHEME = "pycollective"
TORCH_RENDEZVOUS = importlib.import_module("torch.distributed.rendezvous")  # `dist.rendezvous` is a function
_DEFAULT_TIMEOUT: timedelta = TORCH_RENDEZVOUS.default_pg_timeout

Answer = Iterator[tuple[Any, int, int]]


def register() -> None:
    """Register `init_method="pycollective://"`, and make torch's default use it if torch itself cannot rendezvous.

    torch's default, "env://", needs RANK in the environment, which mpirun does not set. `pycollective run` does; its
    ranks still use our store, which listens on the loopback only.
    """
    TORCH_RENDEZVOUS.register_rendezvous_handler(SCHEME, meet)
    from_environment = TORCH_RENDEZVOUS._rendezvous_handlers["env"]

    def handler(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any) -> Answer:
        may = "rank=" not in url and ("RANK" not in os.environ or "PYCOLLECTIVE_RANK" in os.environ)
        ours = may and detection.launcher(os.environ) in _KINDS
        answer: Answer = meet(url, timeout) if ours else from_environment(url, timeout=timeout, **more)
        return answer

    TORCH_RENDEZVOUS._rendezvous_handlers["env"] = handler


_KINDS = ("mpi", "pycollective", "horovod", "slurm")


def meet(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any) -> Answer:
    """Rank and size as determined by `pycollective.init`, and a store that rank 0 serves.

    Raises:
        BootstrapError: see pycollective.init.
    """
    comm = world.init()
    seen = _as_others_see_rank_0(comm)
    store = _serve(seen, comm.size, timeout) if comm.rank == 0 else None
    address = comm.backend.exchange(f"{store.host} {store.port}".encode() if store is not None else b"")[0]
    if store is None:
        host, port = address.decode().split()
        store = dist.TCPStore(host, int(port), comm.size, False, timeout)
    yield store, comm.rank, comm.size
    raise RuntimeError(f"{SCHEME}:// supports only one rendezvous")


def _serve(addresses: list[str], size: int, timeout: timedelta) -> Any:
    """A store that listens on the first of the given addresses that belongs to this host."""
    for address in addresses:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind((address, 0))
            break
        except OSError:  # other hosts reach this one through NAT
            listener.close()
    else:
        raise BootstrapError(f"rank 0 cannot open a port on {', '.join(addresses)}")
    port = listener.getsockname()[1]
    # If torch opened the port itself, it would listen on every interface.
    return dist.TCPStore(address, port, size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())


def _as_others_see_rank_0(comm: Communicator) -> list[str]:
    """Collective: addresses of rank 0's host, as other hosts resolve its name; on one host only the loopback."""
    if comm.local_size == comm.size:
        return ["127.0.0.1"]
    name = comm.backend.exchange(socket.gethostname().encode())[0].decode()
    elsewhere = comm.backend.group.nodes.node != comm.backend.group.nodes.of[0] and comm.local_rank == 0
    resolved = comm.backend.exchange((_resolve(name) if elsewhere else "").encode())
    return [*dict.fromkeys(text.decode() for text in resolved if text), _default_address()]


def _resolve(name: str) -> str:
    """The address of a host, preferably IPv4; empty if the name cannot be resolved."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return ""
    return str(min(found, key=lambda row: row[0] != socket.AF_INET)[4][0])


def _default_address() -> str:
    """The local address of outgoing connections; the loopback if there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # reserved for documentation (RFC 5737); nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])

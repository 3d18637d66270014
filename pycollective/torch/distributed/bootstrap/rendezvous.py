"""Provides torch with rank, size and store under launchers that it does not support: mpirun, `pycollective run`.

torch's store accepts values from any process that reaches its port. So the store created here listens on one address
only, the loopback if the job is on one host, and nothing critical is taken from any store (see meeting.py).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pycollective.comm import world
from pycollective.comm.bootstrap import detection
from pycollective.comm.bootstrap.sockets.this_host import loopback
from pycollective.comm.bootstrap.tcp import listen

SCHEME = "pycollective"
TORCH_RENDEZVOUS = importlib.import_module("torch.distributed.rendezvous")  # `dist.rendezvous` is a function
_DEFAULT_TIMEOUT: timedelta = TORCH_RENDEZVOUS.default_pg_timeout

Answer = Iterator[tuple[Any, int, int]]


def register() -> None:
    """Register `init_method="pycollective://"`, and make torch's default use it if torch itself cannot rendezvous.

    torch's default, "env://", needs RANK in the environment, which mpirun does not set. `pycollective run` does; its
    ranks still use our store, which on one host listens on the loopback only.
    """
    TORCH_RENDEZVOUS.register_rendezvous_handler(SCHEME, meet)
    from_environment = TORCH_RENDEZVOUS._rendezvous_handlers["env"]

    def handler(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any) -> Answer:
        may = "rank=" not in url and ("RANK" not in os.environ or "PYCOLLECTIVE_RANK" in os.environ)
        ours = may and detection.launcher(os.environ) in ("mpi", "pycollective", "horovod", "slurm")
        answer: Answer = meet(url, timeout) if ours else from_environment(url, timeout=timeout, **more)
        return answer

    TORCH_RENDEZVOUS._rendezvous_handlers["env"] = handler


def meet(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any) -> Answer:
    """Rank and size as determined by `pycollective.init`, and a store that rank 0 serves.

    Raises:
        BootstrapError: see pycollective.init.
    """
    comm = world.init()
    network = comm.backend.network
    own_address = loopback() if network is None else network.listener.address[0]
    store = _serve(own_address, comm.size, timeout) if comm.rank == 0 else None
    address = comm.backend.exchange(f"{store.host} {store.port}".encode() if store is not None else b"")[0]
    if store is None:
        host, port = address.decode().split()
        store = dist.TCPStore(host, int(port), comm.size, False, timeout)
    yield store, comm.rank, comm.size
    raise RuntimeError(f"{SCHEME}:// supports only one rendezvous")


def _serve(address: str, size: int, timeout: timedelta) -> Any:
    """A store that listens on one address of this host."""
    listener = listen(address)
    port = listener.getsockname()[1]
    # If torch opened the port itself, it would listen on every interface.
    return dist.TCPStore(address, port, size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())

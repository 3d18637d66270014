"""How torch finds rank, size and store under launchers that it does not know: mpirun, `pycollective run`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pycollective.comm import bootstrap, world

SCHEME = "pycollective"
_TORCHS = importlib.import_module("torch.distributed.rendezvous")  # `dist.rendezvous` is a function
_DEFAULT_TIMEOUT: timedelta = _TORCHS.default_pg_timeout

Answer = Iterator[tuple[Any, int, int]]


def register() -> None:
    """Make torch know `init_method="pycollective://"`, and let its default use that where torch has no answer.

    torch's default, "env://", wants RANK in the environment, which mpirun does not set.
    """
    _TORCHS.register_rendezvous_handler(SCHEME, meet)
    from_environment = _TORCHS._rendezvous_handlers["env"]

    def handler(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any) -> Answer:
        ours = "RANK" not in os.environ and "rank=" not in url and bootstrap.launcher(os.environ) in _KINDS
        answer: Answer = meet(url, timeout) if ours else from_environment(url, timeout=timeout, **more)
        return answer

    _TORCHS._rendezvous_handlers["env"] = handler


_KINDS = ("mpi", "pycollective", "horovod", "slurm")


def meet(url: str, timeout: timedelta = _DEFAULT_TIMEOUT, **more: Any) -> Answer:
    """Rank and size as `pycollective.init` finds them, and a store that rank 0 serves.

    Raises:
        BootstrapError: see pycollective.init.
    """
    comm = world.init()
    host = "localhost" if comm.local_size == comm.size else _name()
    store = None
    if comm.rank == 0:
        store = dist.TCPStore(host, 0, comm.size, True, timeout, wait_for_workers=False)
    told = comm._exchange(f"{host} {store.port}".encode() if store is not None else b"")[0]
    host, port = told.decode().split()
    if store is None:
        store = dist.TCPStore(host, int(port), comm.size, False, timeout)
    yield store, comm.rank, comm.size
    raise RuntimeError(f"{SCHEME}:// cannot meet twice")


def _name() -> str:
    import socket

    return socket.gethostname()

"""What a process needs to connect with ranks of other hosts, for all communicators that it is in."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from pycollective import settings
from pycollective.comm.bootstrap.detection import init_timeout
from pycollective.comm.bootstrap.protocol import Bootstrap
from pycollective.comm.bootstrap.sockets.authentication import TOKEN_BYTES, parse_token
from pycollective.comm.bootstrap.sockets.interfaces import choose_address
from pycollective.comm.bootstrap.sockets.this_host import host_name
from pycollective.comm.hosts.connections import Listener


@dataclass(frozen=True)
class Network:
    """What one process listens with, and how long it waits for others."""

    listener: Listener
    timeout: float
    """Seconds within which the ranks of a new communicator must be connected."""


def open_network(bootstrap: Bootstrap) -> Network:
    """Collective: listen on an address that all hosts can reach, with the token of the job.

    Raises:
        BootstrapError: a host has no such address, or the token is malformed.
    """
    token = job_token(os.environ, bootstrap)
    address = choose_address(os.environ, bootstrap)
    return Network(Listener(address, token, host_name()), init_timeout())


def job_token(env: Mapping[str, str], bootstrap: Bootstrap) -> bytes:
    """Collective: the secret that all ranks of the job share, TOKEN_BYTES long.

    A bootstrap over TCP has needed it already. Through the others, which are trusted (the sockets of one host, MPI),
    rank 0 distributes PYCOLLECTIVE_TOKEN or, if that is not set, a random one: mpirun does not pass variables on.
    """
    token: bytes | None = getattr(bootstrap, "token", None)
    if token is not None:
        return token
    mine = b""
    if bootstrap.rank == 0:
        text = settings.read("PYCOLLECTIVE_TOKEN", env)
        mine = parse_token(text) if text else secrets.token_bytes(TOKEN_BYTES)
    return bootstrap.allgather(mine)[0]

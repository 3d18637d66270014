"""What a process needs to connect with ranks of other hosts, for all communicators that it is in."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pycollective.comm.bootstrap.detection import init_timeout
from pycollective.comm.bootstrap.protocol import Bootstrap
from pycollective.comm.bootstrap.sockets.host_name import host_name
from pycollective.comm.bootstrap.sockets.interfaces import choose_address
from pycollective.comm.bootstrap.token import job_token
from pycollective.comm.hosts.connections import Listener


@dataclass(frozen=True)
class Network:
    """What one process listens with, and how long it waits for others.

    Attributes:
        listener: to which higher ranks connect.
        timeout: seconds within which the ranks of a new communicator must be connected.
    """

    listener: Listener
    timeout: float


def open_network(bootstrap: Bootstrap) -> Network:
    """Collective: listen on an address that all hosts can reach, with the token of the job.

    Raises:
        BootstrapError: a host has no such address, or the token is malformed.
    """
    token = job_token(os.environ, bootstrap)
    address = choose_address(os.environ, bootstrap)
    return Network(Listener(address, token, host_name()), init_timeout())

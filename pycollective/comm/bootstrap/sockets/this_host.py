"""The name of this host in messages, and its address for connections of its own processes."""

from __future__ import annotations

import socket

from pycollective import settings


def host_name() -> str:
    """PYCOLLECTIVE_HOST, where one machine is treated as several hosts; else its own name."""
    return str(settings.read("PYCOLLECTIVE_HOST")) or socket.gethostname()


def loopback() -> str:
    """127.0.0.1; ::1 where that does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"

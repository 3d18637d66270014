"""This host's address for connections of its own processes."""

from __future__ import annotations

import socket


def loopback() -> str:
    """127.0.0.1; ::1 where that does not exist."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("127.0.0.1", 0))
        except OSError:
            return "::1"
    return "127.0.0.1"

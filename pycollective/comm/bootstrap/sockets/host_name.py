"""The name of this host in messages."""

from __future__ import annotations

import socket

from pycollective import settings


def host_name() -> str:
    """PYCOLLECTIVE_HOST, where one machine is treated as several hosts; else its own name."""
    return str(settings.read("PYCOLLECTIVE_HOST")) or socket.gethostname()

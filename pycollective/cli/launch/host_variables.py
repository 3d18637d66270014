"""What a launcher across hosts needs to know of each host, and what it tells the ranks there. Standard library only."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pycollective.comm.bootstrap.launchers import ACROSS_HOSTS
from pycollective.comm.bootstrap.sockets.authentication import TOKEN_BYTES
from pycollective.comm.bootstrap.sockets.interfaces import describe_host
from pycollective.errors import BootstrapError


def describe(rendezvous: int, master: int) -> dict[str, Any]:
    """This host, for a launcher on another one; JSON can represent it.

    Args:
        rendezvous, master: ports held here, for the ranks' rendezvous and for torch's store.
    """
    from importlib.metadata import version

    about = {"ports": [rendezvous, master], "version": version("pycollective"), "byteorder": sys.byteorder}
    return describe_host() | about


def refuse_differences(hosts: Sequence[Mapping[str, Any]]) -> None:
    """All hosts must have the same version of the package and the same byte order.

    Args:
        hosts: their descriptions, each with `host`, the name.

    Raises:
        BootstrapError: two differ; both are named.
    """
    first = hosts[0]
    for each in hosts:
        for what in ("version", "byteorder"):
            if each[what] != first[what]:
                raise BootstrapError(
                    f"host {each['host']} has pycollective's {what} {each[what]}, host {first['host']} {first[what]}"
                )


def new_token() -> str:
    """A job's secret, in the form of PYCOLLECTIVE_TOKEN."""
    return secrets.token_hex(TOKEN_BYTES)


def host_variables(
    hosts: Sequence[Mapping[str, Any]], addresses: Sequence[str], counts: Sequence[int], token: str
) -> list[dict[str, str]]:
    """List each host's variables common to its ranks, without those common to all jobs (run.job_environment).

    Args:
        hosts: their descriptions; rank 0 is on the first.
        addresses: of each, for connections from the others.
        counts: number of ranks on each.
    """
    job = secrets.token_hex(8)
    rendezvous, master = hosts[0]["ports"]
    first = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    return [
        {
            "PYCOLLECTIVE_RENDEZVOUS": f"{ACROSS_HOSTS}{first}:{rendezvous}/{job}",
            "PYCOLLECTIVE_TOKEN": token,
            "PYCOLLECTIVE_INTERFACE": address,
            "PYCOLLECTIVE_LOCAL_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": str(master),
        }
        for address, count in zip(addresses, counts, strict=True)
    ]

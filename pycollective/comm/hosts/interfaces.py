"""Which of its addresses a host listens on: one that all hosts of the job can reach."""

from __future__ import annotations

import fcntl
import ipaddress
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pycollective import settings
from pycollective.errors import BootstrapError

LOOPBACK = "127.0.0.1"
_ADDRESS, _NETMASK, _FLAGS = 0x8915, 0x891B, 0x8913  # SIOCGIFADDR, SIOCGIFNETMASK, SIOCGIFFLAGS
_UP, _IS_LOOPBACK = 0x1, 0x8  # IFF_UP, IFF_LOOPBACK
_NAME_BYTES = 15


@dataclass(frozen=True)
class Interface:
    """A network interface that is up and has an IPv4 address.

    Attributes:
        name: such as "eth0".
        address: with the length of its network's prefix: "10.0.0.1/24".
    """

    name: str
    address: str

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The addresses that it reaches without a router."""
        return ipaddress.IPv4Interface(self.address).network


def interfaces() -> list[Interface]:
    """Those of this host, without the loopback, in the system's order."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                (flags,) = struct.unpack_from("H", _ask(asked, _FLAGS, name), 16)
                address = socket.inet_ntoa(_ask(asked, _ADDRESS, name)[20:24])
                mask = socket.inet_ntoa(_ask(asked, _NETMASK, name)[20:24])
            except OSError:  # it has no IPv4 address
                continue
            if flags & _UP and not flags & _IS_LOOPBACK:
                length = ipaddress.IPv4Network(f"0.0.0.0/{mask}").prefixlen
                found.append(Interface(name, f"{address}/{length}"))
    return found


def _ask(asked: socket.socket, what: int, name: str) -> bytes:
    return fcntl.ioctl(asked, what, struct.pack("256s", name.encode()[:_NAME_BYTES]))


def choose_address(allgather: Callable[[bytes], Sequence[bytes]], rank: int) -> str:
    """Collective: the address on which this rank listens for ranks of other hosts.

    The first interface of this host whose network every host is in; if there is none, the first interface. The
    loopback if all ranks are in one network namespace. PYCOLLECTIVE_INTERFACE names another interface or address.

    Raises:
        BootstrapError: no such interface, or none at all: on every rank, named.
    """
    text: str = settings.read("PYCOLLECTIVE_INTERFACE")
    mine = {"namespace": _namespace(), "wanted": text, "host": socket.gethostname()}
    mine["interfaces"] = [[one.name, one.address] for one in interfaces()]
    received = [json.loads(answer) for answer in allgather(json.dumps(mine).encode())]
    addresses = [_choose(theirs, received) for theirs in received]
    for number, address in enumerate(addresses):
        if not address:
            raise BootstrapError(_complaint(number, received[number]))
    return addresses[rank]


def _choose(one: dict, everyone: Sequence[dict]) -> str:
    """The address of a rank; empty if there is none."""
    own = [Interface(*each) for each in one["interfaces"]]
    if wanted := one["wanted"]:
        own = [each for each in own if wanted in (each.name, each.address.partition("/")[0])]
        if wanted in ("lo", LOOPBACK):
            return LOOPBACK
    elif all(other["namespace"] == one["namespace"] for other in everyone):
        return LOOPBACK
    networks = [{Interface(*each).network for each in other["interfaces"]} for other in everyone]
    shared = [each for each in own if all(each.network in theirs for theirs in networks)]
    return (shared or own)[0].address.partition("/")[0] if own else ""


def _complaint(rank: int, one: dict) -> str:
    names = ", ".join(f"{name} ({address})" for name, address in one["interfaces"]) or "none"
    what = f"no interface {one['wanted']!r} (PYCOLLECTIVE_INTERFACE)" if one["wanted"] else "no network interface"
    return f"rank {rank} on host {one['host']} has {what} with an IPv4 address; it has: {names}"


def _namespace() -> str:
    """A key that is equal for processes with the same network interfaces."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot:
            return boot.read().strip() + os.readlink("/proc/self/ns/net")
    except OSError:
        return socket.gethostname()

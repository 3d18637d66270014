"""Which address of a host its ranks use for connections to other hosts."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pycollective import settings
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.errors import BootstrapError

if TYPE_CHECKING:
    from pycollective.comm.bootstrap.detection import Bootstrap

LOOPBACK = "127.0.0.1"
_GET_ADDRESS, _GET_NETMASK = 0x8915, 0x891B  # SIOCGIFADDR, SIOCGIFNETMASK
_REQUEST_BYTES, _ADDRESS_AT = 256, 20


def interfaces() -> dict[str, ipaddress.IPv4Interface]:
    """The IPv4 address and network of each network interface that has one, by name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack(f"{_REQUEST_BYTES}s", name.encode())
            with contextlib.suppress(OSError):  # it has none
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(any_socket, what, request)[_ADDRESS_AT : _ADDRESS_AT + 4])
                    for what in (_GET_ADDRESS, _GET_NETMASK)
                )
                found[name] = ipaddress.IPv4Interface(f"{address}/{mask}")
    return found


def address_of(wanted: str) -> str:
    """This host's address for a value of PYCOLLECTIVE_INTERFACE: an interface's name, an address, or a network.

    Raises:
        BootstrapError: this host has no such interface; lists those that it has.
    """
    return _select(wanted, socket.gethostname(), interfaces())


def _select(wanted: str, host: str, have: Mapping[str, ipaddress.IPv4Interface]) -> str:
    if wanted in have:
        return str(have[wanted].ip)
    try:
        network = ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        network = None
    for each in have.values():
        if network is not None and each.ip in network:
            return str(each.ip)
    if network is not None and network.version == 6 and network.num_addresses == 1:
        return str(network.network_address)  # interfaces() lists none of them; binding it shows whether it is right
    listed = ", ".join(f"{name} ({each})" for name, each in have.items()) or "none"
    raise BootstrapError(
        f"host {host} has no interface, address or network {wanted!r} (PYCOLLECTIVE_INTERFACE); it has: {listed}"
    )


def describe_host() -> dict[str, Any]:
    """This host's interfaces and network stack, for `addresses_of` in another process."""
    return {"interfaces": {name: str(each) for name, each in interfaces().items()}, "stack": _network_stack().decode()}


def addresses_of(hosts: Sequence[Mapping[str, Any]], wanted: str = "") -> list[str]:
    """The address of each host for connections to the others, from their descriptions (with `host`, the name).

    Raises:
        BootstrapError: a host has no interface `wanted`, or the hosts share no network.
    """
    have = [{name: ipaddress.IPv4Interface(text) for name, text in each["interfaces"].items()} for each in hosts]
    if wanted:
        return [_select(wanted, str(each["host"]), own) for each, own in zip(hosts, have, strict=True)]
    if len({each["stack"] for each in hosts}) == 1:
        return [LOOPBACK] * len(hosts)
    offers = [[str(each) for each in own.values() if not each.is_loopback] for own in have]
    found = _shared(offers)
    if not found:
        listed = "; ".join(
            f"{each['host']}: {', '.join(own) or 'none'}" for each, own in zip(hosts, offers, strict=True)
        )
        raise BootstrapError(
            f"the hosts share no network ({listed}); --interface names an address, a network or an interface"
        )
    return found


def route_to(address: str) -> str:
    """The address of this host from which packets to another would be sent; "" if there is no route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return ""


def choose_address(env: Mapping[str, str], bootstrap: Bootstrap) -> str:
    """Collective: the numeric address at which this rank is to listen for ranks of other hosts.

    In this order: what PYCOLLECTIVE_INTERFACE names; the loopback, if all ranks share one network stack; the address
    under which this rank has met rank 0 over TCP; the first network to which all hosts belong; the address from which
    packets to rank 0 (on rank 0: to the last rank) would be sent.

    Raises:
        BootstrapError: on all ranks, if one has no such interface or no address that others can reach.
    """
    mine, problem = [], ""
    wanted = settings.read("PYCOLLECTIVE_INTERFACE", env)
    met = getattr(bootstrap, "address", "")
    try:
        if wanted:
            mine = [address_of(wanted)]
        elif met and not ipaddress.ip_address(met).is_loopback:
            mine = [met]
        else:
            mine = [str(each) for each in interfaces().values() if not each.is_loopback]
    except BootstrapError as error:
        problem = str(error)
    offer = pack([problem.encode(), b"" if wanted else _network_stack(), *(each.encode() for each in mine)])
    offers = [[part.decode() for part in unpack(blob)] for blob in bootstrap.allgather(offer)]
    for text, *_ in offers:
        if text:
            raise BootstrapError(text)
    if not wanted and len({stack for _, stack, *_ in offers}) == 1:
        return LOOPBACK
    return _common([offer[2:] for offer in offers], bootstrap.rank)


def _common(offers: Sequence[Sequence[str]], rank: int) -> str:
    """This rank's address, from the addresses (with networks, if known) of all ranks."""
    mine = offers[rank]
    if len(mine) == 1:
        return str(ipaddress.ip_interface(mine[0]).ip)
    if shared := _shared(offers):
        return shared[rank]
    other = offers[-1 if rank == 0 else 0]
    found = route_to(str(ipaddress.ip_interface(other[0]).ip)) if other else ""
    if not found:
        raise BootstrapError(
            f"rank {rank} on host {socket.gethostname()} has no address that the other hosts could reach; "
            "PYCOLLECTIVE_INTERFACE names an interface"
        )
    return found


def _shared(offers: Sequence[Sequence[str]]) -> list[str]:
    """The addresses in the first network in which all have one; empty if there is none."""
    for network in (ipaddress.ip_interface(each).network for each in offers[0]):
        members = [[text for text in offer if ipaddress.ip_interface(text).ip in network] for offer in offers]
        # One address on several hosts is a container bridge's, which leads nowhere.
        if all(members) and _distinct(members, offers):
            return [str(ipaddress.ip_interface(own[0]).ip) for own in members]
    return []


def _distinct(members: Sequence[Sequence[str]], offers: Sequence[Sequence[str]]) -> bool:
    """Whether ranks that have different lists of addresses have different addresses in a network."""
    owners: dict[str, Sequence[str]] = {}
    return all(owners.setdefault(own[0], offer) == offer for own, offer in zip(members, offers, strict=True))


def _network_stack() -> bytes:
    """Equal for processes that reach one another through the loopback."""
    parts = []
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/net")]
    return "\0".join(parts or [socket.gethostname()]).encode()

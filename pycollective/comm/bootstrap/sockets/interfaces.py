"""Which address of a host its ranks use for connections to other hosts."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pycollective import settings
from pycollective.comm.bootstrap.protocol import Bootstrap
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.comm.bootstrap.sockets.this_host import host_name, loopback
from pycollective.errors import BootstrapError

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
"""An address of a network interface, with its network."""
_UP = 1  # IFF_UP
_PARTS = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
"""Where the address is in a sockaddr, by its family."""


def interfaces() -> dict[str, list[Interface]]:
    """The addresses and networks of each network interface that is up, by name, IPv4 first.

    IPv6 addresses of one link only (fe80::) are left out: they mean nothing without an interface.
    """
    found: dict[str, list[Interface]] = {}
    for name, address, mask in _getifaddrs():
        prefix = sum(byte.bit_count() for byte in mask)
        each = ipaddress.ip_interface((address, prefix))
        if not (each.version == 6 and each.is_link_local):
            found.setdefault(name, []).append(each)
    return {name: sorted(each, key=lambda one: one.version) for name, each in found.items()}


def _getifaddrs() -> Iterator[tuple[str, bytes, bytes]]:
    """Name, address and network mask, as getifaddrs(3) lists them."""
    import ctypes  # slow to load

    class Row(ctypes.Structure):
        pass

    pointer = ctypes.POINTER(Row)
    Row._fields_ = [
        ("next", pointer), ("name", ctypes.c_char_p), ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p), ("mask", ctypes.c_void_p),
    ]  # fmt: skip
    libc, first = ctypes.CDLL(None), pointer()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return
    try:
        row = first
        while row:
            one, row = row.contents, row.contents.next
            if not one.address or not one.mask or not one.flags & _UP:
                continue
            (family,) = struct.unpack("=H", ctypes.string_at(one.address, 2))
            part = _PARTS.get(family)
            if part is not None:
                address, mask = (ctypes.string_at(at, part.stop)[part] for at in (one.address, one.mask))
                yield os.fsdecode(one.name), address, mask
    finally:
        libc.freeifaddrs(first)


def address_of(wanted: str) -> str:
    """This host's address for a value of PYCOLLECTIVE_INTERFACE: an interface's name, an address, or a network.

    Raises:
        BootstrapError: this host has no such interface; lists those that it has.
    """
    return _select(wanted, host_name(), interfaces())


def _select(wanted: str, host: str, have: Mapping[str, Sequence[Interface]]) -> str:
    if wanted in have:
        return str(have[wanted][0].ip)
    try:
        network = ipaddress.ip_network(wanted.strip("[]"), strict=False)
    except ValueError:
        network = None
    for each in (each for of_one in have.values() for each in of_one):
        if network is not None and each.ip in network:
            return str(each.ip)
    listed = ", ".join(f"{name} ({each})" for name, of_one in have.items() for each in of_one) or "none"
    raise BootstrapError(
        f"host {host} has no interface, address or network {wanted!r} (PYCOLLECTIVE_INTERFACE); it has: {listed}"
    )


def _for_others(have: Mapping[str, Sequence[Interface]]) -> list[str]:
    """The addresses at which other hosts might reach a host, IPv4 first."""
    found = (each for of_one in have.values() for each in of_one if not each.is_loopback)
    return [str(each) for each in sorted(found, key=lambda one: one.version)]


def describe_host() -> dict[str, Any]:
    """This host's interfaces and network stack, for `addresses_of` in another process."""
    have = {name: [str(each) for each in of_one] for name, of_one in interfaces().items()}
    return {"interfaces": have, "stack": _network_stack().decode(), "loopback": loopback()}


def addresses_of(hosts: Sequence[Mapping[str, Any]], wanted: str = "") -> list[str]:
    """The address of each host for connections to the others, from their descriptions (with `host`, the name).

    Raises:
        BootstrapError: a host has no interface `wanted`, or the hosts share no network.
    """
    have = [
        {name: [ipaddress.ip_interface(text) for text in texts] for name, texts in each["interfaces"].items()}
        for each in hosts
    ]
    if wanted:
        return [_select(wanted, str(each["host"]), own) for each, own in zip(hosts, have, strict=True)]
    if len({each["stack"] for each in hosts}) == 1:
        return [hosts[0]["loopback"]] * len(hosts)
    offers = [_for_others(own) for own in have]
    found = _shared(offers)
    if not found:
        names = [each["host"] for each in hosts]
        listed = "; ".join(f"{name}: {', '.join(own) or 'none'}" for name, own in zip(names, offers, strict=True))
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
            mine = _for_others(interfaces())
    except BootstrapError as error:
        problem = str(error)
    offer = pack([problem.encode(), b"" if wanted else _network_stack(), *(each.encode() for each in mine)])
    offers = [[part.decode() for part in unpack(blob)] for blob in bootstrap.allgather(offer)]
    for text, *_ in offers:
        if text:
            raise BootstrapError(text)
    if not wanted and len({stack for _, stack, *_ in offers}) == 1:
        return loopback()
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
            f"rank {rank} on host {host_name()} has no address that the other hosts could reach; "
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
    """Return whether ranks that have different lists of addresses have different addresses in a network."""
    owners: dict[str, Sequence[str]] = {}
    return all(owners.setdefault(own[0], offer) == offer for own, offer in zip(members, offers, strict=True))


def _network_stack() -> bytes:
    """Equal for processes that reach one another through the loopback."""
    parts = []
    with contextlib.suppress(OSError):
        parts = [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/net")]
    return "\0".join(parts or [socket.gethostname()]).encode()

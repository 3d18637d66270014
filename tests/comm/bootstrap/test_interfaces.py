"""The address at which a rank listens for ranks of other hosts."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from pycollective.comm.bootstrap.protocol import Alone
from pycollective.comm.bootstrap.sockets import interfaces as under_test
from pycollective.comm.bootstrap.sockets.frames import pack, unpack
from pycollective.comm.bootstrap.sockets.interfaces import address_of, choose_address, interfaces, route_to
from pycollective.errors import BootstrapError


def common(*offers: list[str]) -> list[str]:
    return [under_test._common(offers, rank) for rank in range(len(offers))]


def test_the_loopback_is_found_with_its_network() -> None:
    assert str(interfaces()["lo"][0]) == "127.0.0.1/8"
    assert route_to("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("wanted", ["lo", "127.0.0.1", "127.0.0.0/8"])
def test_an_interface_by_name_address_or_network(wanted: str) -> None:
    assert address_of(wanted) == "127.0.0.1"
    assert choose_address({"PYCOLLECTIVE_INTERFACE": wanted}, Alone()) == "127.0.0.1"


@pytest.mark.parametrize("wanted", ["eth77", "203.0.113.1", "203.0.113.0/24"])
def test_an_interface_that_is_missing(wanted: str) -> None:
    with pytest.raises(BootstrapError, match=rf"host {socket.gethostname()} has no interface.*{wanted}.*lo \(127"):
        choose_address({"PYCOLLECTIVE_INTERFACE": wanted}, Alone())


def test_an_address_of_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"eth0": ["10.0.0.2/8", "fd00::2/64"], "eth1": ["fd01::2/64"]}
    found = {name: [ipaddress.ip_interface(text) for text in texts] for name, texts in have.items()}
    monkeypatch.setattr(under_test, "interfaces", lambda: found)
    for wanted, address in {
        "eth0": "10.0.0.2", "eth1": "fd01::2", "fd00::/16": "fd00::2", "fd01::2": "fd01::2", "[fd01::2]": "fd01::2",
    }.items():  # fmt: skip
        assert address_of(wanted) == address
    with pytest.raises(BootstrapError, match=r"it has: eth0 \(10.*eth0 \(fd00::2/64\), eth1 \(fd01::2/64\)"):
        address_of("fd02::/64")


def test_ranks_of_one_network_stack_use_the_loopback() -> None:
    assert choose_address({}, Alone()) == "127.0.0.1"


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        (["10.0.0.1/8 fd00::1/64", "10.0.0.2/8 fd00::2/64"], "10.0.0.1 10.0.0.2"),  # those of IPv4 come first
        (["fd00::1/64", "10.0.0.2/8 fd00::2/64"], "fd00::1 fd00::2"),
        (["10.1.0.1/24 192.168.5.1/24"] * 2 + ["172.16.0.2/24 192.168.5.2/24"], "192.168.5.1 192.168.5.1 192.168.5.2"),
        (["172.17.0.1/16 10.0.0.1/8", "172.17.0.1/16 10.0.0.2/8"], "10.0.0.1 10.0.0.2"),  # a bridge on every host
    ],
)
def test_the_first_network_of_all_hosts(offers: list[str], chosen: str) -> None:
    assert common(*(offer.split() for offer in offers)) == chosen.split()


def test_without_a_common_network_the_route_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "route_to", lambda address: f"to {address}")
    first, second = ["10.0.0.1/24", "10.0.1.1/24"], ["10.0.2.1/24", "10.0.3.1/24"]
    assert common(first, second) == ["to 10.0.2.1", "to 10.0.0.1"]
    monkeypatch.setattr(under_test, "route_to", lambda address: "")
    with pytest.raises(BootstrapError, match=r"rank 0 on host .* has no address"):
        common(first, second)


def test_a_problem_of_one_rank_is_raised_on_all() -> None:
    class TwoRanks(Alone):
        def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
            assert unpack(data)[0] == b""
            return [data, pack([b"host b has no interface eth7", b""])]

    with pytest.raises(BootstrapError, match="host b has no interface eth7"):
        choose_address({}, TwoRanks())

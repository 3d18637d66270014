"""The rendezvous across hosts: the same rounds as on one host, over TCP and with the job's token."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

import pytest

from meeting import on_ranks, on_threads
from pycollective.comm.bootstrap.protocol import Alone, Bootstrap
from pycollective.comm.bootstrap.sockets.authentication import parse_token
from pycollective.comm.bootstrap.tcp import TcpBootstrap, listen, meet_at, resolve
from pycollective.comm.hosts.network import job_token
from pycollective.errors import BootstrapError

TOKEN = bytes(range(16))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def world(port: int, rank: int, size: int, **others: Any) -> TcpBootstrap:
    given: dict[str, Any] = {"kind": "test", "job": "job", "token": TOKEN, "timeout": 10.0} | others
    return TcpBootstrap(rank, size, meet=meet_at(rank, "127.0.0.1", port), **given)


def test_the_address_and_the_token() -> None:
    port = free_port()

    def rank(r: int) -> tuple[str, bytes]:
        with contextlib.closing(world(port, r, 2)) as found:
            assert isinstance(found, Bootstrap)
            return found.address, job_token({}, found)

    assert on_ranks((0, 1), rank) == [("127.0.0.1", TOKEN)] * 2


@pytest.mark.parametrize("other", [{"token": bytes(16)}, {"job": "an earlier attempt"}])
def test_a_rank_with_another_token_or_of_another_job_is_refused(other: dict[str, Any]) -> None:
    port = free_port()
    errors = on_threads([lambda: world(port, 0, 2, timeout=0.6), lambda: world(port, 1, 2, timeout=0.6, **other)])
    assert "rank 1 of 2 has not arrived" in str(errors[0])
    assert f"rank 1 on host {socket.gethostname()} cannot reach rank 0" in str(errors[1])
    assert "it belongs to another job" in str(errors[1]) or "refused" in str(errors[1])  # after rank 0 has given up


def test_an_absent_rank_zero_is_named_with_its_address_and_the_reason() -> None:
    port = free_port()
    with pytest.raises(BootstrapError, match=rf"rank 0 on host 127.0.0.1 at 127.0.0.1:{port}: connection ref"):
        world(port, 1, 2, timeout=0.3)


def test_addresses() -> None:
    assert resolve("127.0.0.1") == "127.0.0.1"
    assert resolve("::1") == "::1"
    assert resolve("localhost") == "127.0.0.1"
    with pytest.raises(BootstrapError, match=r"host name 'no-such-host\.invalid' does not resolve on host"):
        resolve("no-such-host.invalid")
    with listen("127.0.0.1") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BootstrapError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("text", ["12", "g" * 32, "0" * 31, "0" * 64])
def test_a_bad_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BootstrapError, match="PYCOLLECTIVE_TOKEN is not 32 hexadecimal digits") as caught:
        parse_token(text)
    assert text not in str(caught.value).replace("32", "")


def test_the_token_of_trusted_bootstraps_comes_from_rank_zero() -> None:
    assert job_token({"PYCOLLECTIVE_TOKEN": TOKEN.hex()}, Alone()) == TOKEN
    first, second = job_token({}, Alone()), job_token({}, Alone())
    assert len(first) == 16
    assert first != second

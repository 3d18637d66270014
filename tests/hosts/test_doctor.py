"""`pycollective doctor --network` across simulated hosts."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
from pathlib import Path

import pytest

from hosts.namespaces import make_hosts, mpirun
from launch import CLI, run_command
from pycollective.cli.doctor import network

DOCTOR = [sys.executable, "-I", "-m", "pycollective", "doctor", "--network", "--json"]


@pytest.mark.mpi
def test_the_network_between_hosts(tmp_path: Path) -> None:
    with make_hosts(3, bandwidth="100mbit") as hosts:
        mpirun(hosts, (1, 2, 1), [*DOCTOR, tmp_path / "found.json"])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["network"]["eth0"]["value"].startswith("10.77.0.1, MTU 1500")
    routes = found["from rank 0 on host0"]
    assert [*routes] == ["rank 1 on host1, eth0", "rank 3 on host2, eth0"]
    for route, address in zip(routes.values(), ("10.77.0.2", "10.77.0.3"), strict=True):
        match = re.fullmatch(rf"{address}: round trip \d+ us, ([\d.]+) Gbit/s, clock [+-]0\.\d+ ms", route["value"])
        assert match is not None, route
        assert 0 < float(match[1]) < 0.11  # the limit of the link, and what its queue holds


def test_hosts_that_are_one_machine(tmp_path: Path) -> None:
    (tmp_path / "rsh").write_text('export PYCOLLECTIVE_HOST=$1; shift; exec sh -c "$*"')
    words = [*CLI, "run", "-H", "a:1,b:1", "--rsh", "sh rsh", *DOCTOR, "-"]
    found = json.loads(run_command(*words, cwd=tmp_path).stdout)
    assert all(route.startswith("rank 1 on b, ") for route in found["from rank 0 on a"])


def test_without_a_launcher(tmp_path: Path) -> None:
    found = json.loads(run_command(*DOCTOR, "-", cwd=tmp_path).stdout)
    [finding] = [group for name, group in found.items() if name.startswith("from rank 0")]
    assert finding["other hosts"]["value"] == "none"


def test_a_stranger_gets_no_answer() -> None:
    with network.ProbeServer(b"k" * 16) as server:
        with socket.create_connection(("127.0.0.1", server.port), 5) as stranger:
            stranger.sendall(b"x" * 16 + b"?")
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
        assert network.measure("127.0.0.1", server.port, b"k" * 16).round_trip > 0


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_an_address_of_ipv6() -> None:
    with network.ProbeServer(b"k" * 16) as server:
        assert network.measure("::1", server.port, b"k" * 16).round_trip > 0


def test_nobody_at_the_address() -> None:
    with network.ProbeServer(b"k" * 16) as server:
        port = server.port
    finding = network._to_one("here", "rank 1", "127.0.0.1", port, b"k" * 16)
    assert (finding.ok, finding.value) == (False, "127.0.0.1 cannot be reached")

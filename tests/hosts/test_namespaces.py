"""The simulated hosts themselves: names, networks, faults, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from speed import until

from hosts.namespaces import make_hosts
from hosts.simulated import Hosts

LISTEN = """
import contextlib, socket
server = socket.create_server(("", 5000))
while True:
    peer = server.accept()[0]
    with contextlib.suppress(OSError), peer:  # it may have given up
        peer.sendall(socket.gethostname().encode())
"""
ASK = """
import socket, sys
print(socket.create_connection((sys.argv[1], 5000), 0.5).recv(99).decode())
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with make_hosts(3) as made:
        yield made


def _python(text: str, *words: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", text, *words]


def _asked(hosts: Hosts, host: str, other: str) -> str:
    """The answer of the server on another host; empty without one."""
    done = subprocess.run(hosts.command(host, _python(ASK, other)), capture_output=True, text=True, timeout=20)
    return done.stdout.strip()


def test_hosts_reach_each_other_until_they_are_cut_off(hosts: Hosts) -> None:
    for host in hosts.names:
        hosts.popen(host, _python(LISTEN))
    until(lambda: all(_asked(hosts, host, host) == host for host in hosts.names))
    until(lambda: _asked(hosts, "host0", "host2") == "host2")
    hosts.cut("host1", "host2")
    until(lambda: [_asked(hosts, "host1", other) for other in hosts.names] == ["", "host1", "host2"])
    hosts.restore("host1", "host2")
    until(lambda: _asked(hosts, "host0", "host1") == "host1")
    hosts.freeze("host1")
    assert _asked(hosts, "host0", "host1") == ""
    hosts.resume("host1")
    until(lambda: _asked(hosts, "host0", "host1") == "host1")
    hosts.kill("host1")
    until(lambda: not hosts.processes("host1"))
    assert hosts.processes("host2")
    assert _asked(hosts, "host0", "host1") == ""


def test_this_machine_is_out_of_their_reach(hosts: Hosts, tmp_path: Path) -> None:
    script = 'hostname; ls -A /dev/shm; ip -br link | grep -v -e "^lo " -e "^eth0@"'
    done = subprocess.run(hosts.command("host0", ["sh", "-c", script]), capture_output=True, text=True)
    assert done.stdout == "host0\n"
    assert subprocess.run(["ip", "link"], capture_output=True, text=True).stdout.count("port0") == 0


def test_nothing_is_left_when_their_maker_is_killed(tmp_path: Path) -> None:
    make_hosts(1).close()  # or skip
    script = tmp_path / "maker.py"
    script.write_text(
        "import subprocess, time\nfrom pycollective.bench.namespaces import Hosts\n"
        "hosts = Hosts(2)\nsubprocess.Popen(hosts.command('host1', ['sleep', '1234']))\n"
        "print(hosts._first, flush=True)\ntime.sleep(60)\n"
    )
    maker = subprocess.Popen([sys.executable, "-I", script], stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    first = Path("/proc", maker.stdout.readline().strip())
    everything = os.readlink(first / "ns/pid")
    until(lambda: len(_sharing(everything)) >= 4)  # the first, two that hold hosts, sleep
    maker.send_signal(signal.SIGKILL)
    maker.wait()
    until(lambda: not _sharing(everything))


def _sharing(namespace: str) -> list[str]:
    """The processes of a PID namespace."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/ns/pid") == namespace:
                found.append(pid)
        except OSError:  # it has ended
            continue
    return found

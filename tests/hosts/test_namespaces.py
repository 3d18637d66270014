"""The simulated hosts themselves: what they see of this machine, and that nothing is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from speed import until

from hosts.namespaces import make_hosts
from launch import run_command


def test_this_machine_is_out_of_their_reach() -> None:
    script = 'hostname; ls -A /dev/shm; ip -br link | grep -v -e "^lo " -e "^eth0@"'
    with make_hosts(1) as hosts:
        assert run_command(*hosts.command("host0", ["sh", "-c", script]), code=None).stdout == "host0\n"
        assert "port0" not in run_command("ip", "link").stdout


def test_nothing_is_left_when_their_maker_is_killed(tmp_path: Path) -> None:
    make_hosts(1).close()  # or skip
    script = tmp_path / "maker.py"
    script.write_text(
        "import subprocess, time\nfrom pycollective.bench.namespaces import Hosts\n"
        "hosts = Hosts(2)\nsubprocess.Popen(hosts.command('host1', ['sleep', '1234']))\n"
        "print(hosts._first, flush=True)\ntime.sleep(60)\n"
    )
    maker = subprocess.Popen([sys.executable, "-I", script], stdout=subprocess.PIPE, text=True)
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

"""Simulated hosts with faults: tests separate, freeze and kill them, and look into them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pycollective.bench import namespaces


class Hosts(namespaces.Hosts):
    """Hosts whose networks and processes can fail."""

    def __init__(self, count: int, bandwidth: str = "", delay: str = "") -> None:
        super().__init__(count, bandwidth, delay)
        self._root = Path("/proc", self._first, "root")  # the file system as seen inside
        self._holding = {name: int((self._root / "run/hosts" / name).read_text()) for name in self.names}
        self._inode = {name: self._network(pid) for name, pid in self._holding.items()}

    def popen(self, host: str, words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a host.  What ends the command is `kill`, or the end of the hosts."""
        return subprocess.Popen(self.command(host, words), **options)

    def cut(self, *hosts: str) -> None:
        """Separate hosts from the others, but not from each other: packets are lost, and nobody is told."""
        for host in hosts:
            subprocess.run([*self._enter, "ip", "link", "set", _port(host), "master", "apart"], check=True)

    def lose_large_packets(self, host: str, nbytes: int = 1000) -> None:
        """Lose what is larger on the way to a host, and tell nobody, as in a tunnel with a smaller MTU."""
        limit = ["tbf", "rate", "10gbit", "burst", str(nbytes), "latency", "20ms"]  # none that exceeds the burst passes
        subprocess.run([*self._enter, "tc", "qdisc", "add", "dev", _port(host), "root", *limit], check=True)

    def freeze(self, host: str) -> None:
        self._signal_all(host, "STOP")

    def resume(self, host: str) -> None:
        self._signal_all(host, "CONT")

    def stop(self, host: str, *pids: int) -> None:
        """Stop processes of a host, given by the PIDs that they have inside."""
        self._signal("STOP", pids)

    def kill(self, host: str, *pids: int) -> None:
        """Send SIGKILL to processes of a host, by default to all, given by the PIDs that they have inside."""
        if pids:
            self._signal("KILL", pids)
        else:
            self._signal_all(host, "KILL")

    def processes(self, host: str) -> list[int]:
        """The PIDs, as seen inside, of all processes of a host but the one that holds it."""
        return [pid for pid in self._pids() if self._network(pid) == self._inode[host] and pid != self._holding[host]]

    def address(self, host: str) -> str:
        return f"10.77.0.{self.names.index(host) + 1}"

    def namespaces(self, host: str) -> list[str]:
        """Files of the namespaces of a host, for setns: what enters them all and forks is a process of that host."""
        inside = self._root / "proc" / str(self._holding[host]) / "ns"
        return [f"/proc/{self._first}/ns/pid", *(str(inside / name) for name in ("uts", "mnt", "net"))]

    def network_table(self, host: str, name: str) -> str:
        """One of the kernel's tables of a host's sockets: /proc/net/NAME."""
        return (self._root / "proc" / str(self._holding[host]) / "net" / name).read_text()

    def _pids(self) -> list[int]:
        return [int(name) for name in os.listdir(self._root / "proc") if name.isdigit()]

    def _network(self, pid: int) -> int:
        """The number of a process's network namespace; 0 if the process has ended."""
        try:
            return (self._root / "proc" / str(pid) / "ns/net").stat().st_ino
        except OSError:
            return 0

    def _signal(self, name: str, pids: Sequence[int]) -> None:
        command = [*self._enter, "kill", "-s", name, *map(str, pids)]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # some may have ended

    def _signal_all(self, host: str, name: str) -> None:
        """Reaches processes that start meanwhile, too."""
        reached: set[int] = set()
        while new := set(self.processes(host)) - reached:
            self._signal(name, sorted(new))
            reached |= new


def _port(host: str) -> str:
    return "port" + host.removeprefix("host")

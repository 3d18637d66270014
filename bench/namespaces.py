"""Several hosts on one machine, for benchmarks and tests: network namespaces with host names, on one bridge.

All of them are in one PID namespace whose first process waits for the end of a pipe from this process.  However this
process ends, the pipe closes, the kernel kills everything in the PID namespace, and every other namespace, link and
mount goes with the last process in it.  So nothing can be left behind, and names need not be unique.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["AGENT", "ENTER", "Hosts", "why_not"]

ENTER, AGENT = "/run/hosts/enter", "/run/hosts/agent"
"""Inside: `enter HOST COMMAND...` runs a shell command on a host, with the arguments of ssh.  The agent also behaves as
ssh does when the host vanishes: it stays, so that its launcher is not told.
"""
_NEEDED = ("ip", "tc", "unshare", "nsenter", "mount")
_SETUP = """
set -e
read -r own _ </proc/self/stat # in /proc as it was before: the PID outside
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/hosts /run/tmp
cat >/run/hosts/enter <<'end'
#!/bin/sh
name=$1
shift
export TMPDIR=/run/tmp
exec nsenter -t "$(cat "/run/hosts/$name")" -n -u -m sh -c "$*"
end
cat >/run/hosts/agent <<'end'
#!/bin/sh
/run/hosts/enter "$@"
code=$?
[ $code -lt 128 ] || exec sleep infinity # as ssh, which does not see that a host has vanished
exit $code
end
chmod +x /run/hosts/enter /run/hosts/agent
echo '127.0.0.1 localhost' >/run/names
for k in $(seq 0 $(($1 - 1))); do echo "10.77.0.$((k + 1)) host$k" >>/run/names; done
mount --bind /run/names /etc/hosts
ip link set lo up
for bridge in inside apart; do ip link add name $bridge type bridge; ip link set $bridge up; done
for k in $(seq 0 $(($1 - 1))); do
  unshare --net --uts --mount sh -c "hostname host$k; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /run/tmp
    echo \\$\\$ >/run/hosts/new; mv /run/hosts/new /run/hosts/host$k; exec sleep infinity" &
  until [ -s /run/hosts/host$k ]; do sleep 0.005; done
  ip link add port$k type veth peer name eth0 netns "$(cat /run/hosts/host$k)"
  ip link set port$k master inside up
  /run/hosts/enter host$k "ip link set lo up; ip addr add 10.77.0.$((k + 1))/24 dev eth0; ip link set eth0 up"
  /run/hosts/enter host$k "echo reno >/proc/sys/net/ipv4/tcp_congestion_control"
  [ -z "$2" ] || /run/hosts/enter host$k "tc qdisc add dev eth0 root handle 1: tbf rate $2 burst 64kb latency 20ms"
  [ -z "$3" ] || /run/hosts/enter host$k "tc qdisc add dev eth0 ${2:+parent 1:} ${2:-root} netem delay $3"
done
echo "$own"
exec cat
"""


def why_not() -> str:
    """Why hosts cannot be made here; empty if they can."""
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    done = subprocess.run(
        ["unshare", "-numpf", "ip", "link", "add", "one", "type", "veth", "peer", "name", "two"], capture_output=True
    )
    return "needs permission to make network namespaces (root)" if done.returncode else ""


class Hosts:
    """A context manager: hosts host0, host1, ..., which reach each other and nothing else.

    Each has a host name, a network with the address 10.77.0.(k + 1), a /dev/shm and a TMPDIR; other files are shared.
    TCP's congestion control is Reno, which every kernel has: the default of the machine, such as BBR, may send at less
    than the bandwidth.

    Args:
        count: of the hosts.
        bandwidth: limit of what each sends, in tc's notation (1gbit); empty for none.
        delay: added to each packet, in tc's notation (1ms); empty for none.  Needs the kernel's sch_netem.

    Raises:
        OSError: they cannot be made.
    """

    def __init__(self, count: int, bandwidth: str = "", delay: str = "") -> None:
        self.names = tuple(f"host{k}" for k in range(count))
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child"]
            + ["sh", "-c", _SETUP, "hosts", str(count), bandwidth, delay],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None and self._holder.stderr is not None
        answer = self._holder.stdout.readline().strip()
        if not answer:
            problem = self._holder.stderr.read().strip()
            self.close()
            raise OSError(f"the hosts cannot be made: {problem}")
        self._first = answer
        self._holding = {name: int((self._root / "run/hosts" / name).read_text()) for name in self.names}
        self._inode = {name: self._network(pid) for name, pid in self._holding.items()}

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything in the hosts, and remove them."""
        for pipe in (self._holder.stdin, self._holder.stdout, self._holder.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self._holder.wait(10)  # returns after the last process inside has ended
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()

    # -- commands ------------------------------------------------------------------------------------------------------

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command line that, started here, runs words on a host, in this process's working directory."""
        line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
        # a shell between: nsenter would stop itself when its child is stopped
        return [*self._enter, "sh", "-c", '"$@"; exit $?', "-", ENTER, host, line]

    def popen(self, host: str, words: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a host.  What ends the command is `kill`, or the end of the hosts."""
        return subprocess.Popen(self.command(host, words), **options)

    def mpirun(self, program: str, ranks: Sequence[int], words: Sequence[str], start: str = "host0") -> list[str]:
        """The command line that, started here, runs Open MPI's mpirun on a host, with so many ranks on each host."""
        where = ",".join(f"{name}:{count}" for name, count in zip(self.names, ranks, strict=True) if count)
        options = ["--prtemca", "plm_ssh_agent", AGENT, "--bind-to", "none", "-np", str(sum(ranks)), "-H", where]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return self.command(start, [program, *root, *options, *words])

    # -- faults --------------------------------------------------------------------------------------------------------

    def cut(self, *hosts: str) -> None:
        """Separate hosts from the others, but not from each other: packets are lost, and nobody is told."""
        for host in hosts:
            self._connect(host, "apart")

    def restore(self, *hosts: str) -> None:
        """Undo `cut`."""
        for host in hosts:
            self._connect(host, "inside")

    def lose_large_packets(self, host: str, nbytes: int = 1000) -> None:
        """Lose what is larger on the way to a host, and tell nobody, as in a tunnel with a smaller MTU."""
        limit = ["tbf", "rate", "10gbit", "burst", str(nbytes), "latency", "20ms"]  # none that exceeds the burst passes
        port = "port" + host.removeprefix("host")
        subprocess.run([*self._enter, "tc", "qdisc", "add", "dev", port, "root", *limit], check=True)

    def freeze(self, host: str) -> None:
        """Stop all processes of a host."""
        self._signal_all(host, "STOP")

    def resume(self, host: str) -> None:
        """Undo `freeze`."""
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
        """A host's address."""
        return f"10.77.0.{self.names.index(host) + 1}"

    def namespaces(self, host: str) -> list[str]:
        """Files of the namespaces of a host, for setns: what enters them all and forks is a process of that host."""
        inside = self._root / "proc" / str(self._holding[host]) / "ns"
        return [f"/proc/{self._first}/ns/pid", *(str(inside / name) for name in ("uts", "mnt", "net"))]

    def network_table(self, host: str, name: str) -> str:
        """One of the kernel's tables of a host's sockets: /proc/net/NAME."""
        return (self._root / "proc" / str(self._holding[host]) / "net" / name).read_text()

    # -- internal ------------------------------------------------------------------------------------------------------

    @property
    def _enter(self) -> list[str]:
        return ["nsenter", "-t", self._first, "-n", "-m", "-p"]

    @property
    def _root(self) -> Path:
        """The file system as seen inside."""
        return Path("/proc", self._first, "root")

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

    def _connect(self, host: str, bridge: str) -> None:
        port = "port" + host.removeprefix("host")
        subprocess.run([*self._enter, "ip", "link", "set", port, "master", bridge], check=True)

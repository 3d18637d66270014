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
        self._enter = ["nsenter", "-t", answer, "-n", "-m", "-p"]

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

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """The command line that, started here, runs words on a host, in this process's working directory."""
        line = f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"
        # a shell between: nsenter would stop itself when its child is stopped
        return [*self._enter, "sh", "-c", '"$@"; exit $?', "-", ENTER, host, line]

    def mpirun(self, program: str, ranks: Sequence[int], words: Sequence[str], start: str = "host0") -> list[str]:
        """The command line that, started here, runs Open MPI's mpirun on a host, with so many ranks on each host."""
        where = ",".join(f"{name}:{count}" for name, count in zip(self.names, ranks, strict=True) if count)
        options = ["--prtemca", "plm_ssh_agent", AGENT, "--bind-to", "none", "-np", str(sum(ranks)), "-H", where]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return self.command(start, [program, *root, *options, *words])

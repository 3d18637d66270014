"""`pycollective run -H`: a job on several hosts without MPI, each host's ranks started by an agent in a remote shell.

The agents (agent.py) report their addresses; the launcher chooses those that all hosts share, and sends each agent
through its standard input the command, the environment and the token: none of these is on a command line. The
connection to an agent's standard input is what keeps its ranks alive.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pycollective import settings
from pycollective.cli.agent import READY
from pycollective.cli.hosts import Host
from pycollective.cli.job import KILL_AFTER, Pipe, log
from pycollective.comm.bootstrap.interfaces import addresses_of
from pycollective.comm.bootstrap.launchers import ACROSS_HOSTS
from pycollective.errors import BootstrapError

DEFAULT_SHELL = ("ssh", "-o", "BatchMode=yes")
FORWARDED = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES")
FORWARDED_PREFIXES = (settings.PREFIX, "HOROVOD_", "PYTHON", "OMP_", "NCCL_", "TORCH_")
"""Variables that the ranks get from the launcher, by name and by prefix; all others are those of their host."""
_START_SECONDS = 60.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _Agent:
    """A host's remote shell."""

    host: Host
    process: subprocess.Popen[bytes]
    about: dict[str, Any] = field(default_factory=dict)
    heard: bytes = b""
    code: int | None = None

    def tell(self, text: bytes) -> None:
        """Write to its standard input; it is no error if it has ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def abandon(self) -> None:
        """End its standard input: the agent kills its ranks."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()


def run(
    hosts: Sequence[Host],
    command: Sequence[str],
    *,
    shell: Sequence[str] = (),
    interface: str = "",
    tag: bool = False,
    grace: float = 0.0,
    env: Mapping[str, str] | None = None,
    names: Sequence[str] = (),
) -> int:
    """Start `command` on the hosts, wait for all ranks, and return the first failing rank's exit code (or 0).

    Args:
        shell: words of a remote shell, which takes a host and a command; default: ssh, and none for this host.
        interface: as PYCOLLECTIVE_INTERFACE. names: further variables to be forwarded.
        tag, grace, env: as on one host.

    Raises:
        BootstrapError: a host whose agent does not start, or hosts without an address that the others can reach.
    """
    given = dict(os.environ if env is None else env)
    if interface:
        given["PYCOLLECTIVE_INTERFACE"] = interface
    for sentence in settings.unknown(given).values():
        log(f"warning: {sentence}")
    job = _Hosts(hosts, shell, given)
    with job.signals():
        try:
            job.start_agents()
            job.send_orders(list(command), tag, grace, names)
            return job.wait(grace)
        finally:
            job.end()


class _Hosts:
    """The agents of a job."""

    def __init__(self, hosts: Sequence[Host], shell: Sequence[str], env: dict[str, str]) -> None:
        self._hosts, self._shell, self._env = hosts, shell, env
        self._agents: list[_Agent] = []
        self._selector = selectors.DefaultSelector()
        self._stopping: float | None = None
        """When all that is left is killed."""

    def start_agents(self) -> None:
        """Start all remote shells, and wait until each agent has reported."""
        for host in self._hosts:
            process = subprocess.Popen(
                self._words(host.name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
            agent = _Agent(host, process)
            self._agents.append(agent)
            self._selector.register(process.stdout, selectors.EVENT_READ, agent)  # type: ignore[arg-type]
        deadline = time.monotonic() + _START_SECONDS
        while silent := [agent for agent in self._agents if not agent.about]:
            ready = self._selector.select(max(0.0, deadline - time.monotonic()))
            if self._stopping is not None:
                raise BootstrapError("interrupted before the ranks were started")
            if not ready and time.monotonic() >= deadline:
                names = ", ".join(agent.host.name for agent in silent)
                raise BootstrapError(
                    f"no answer from {names} within {_START_SECONDS:.0f} s (tried: {self._tried(silent[0])})"
                )
            for key, _ in ready:
                self._hear(key.data)
        self._compare()

    def send_orders(self, words: list[str], tag: bool, grace: float, names: Sequence[str]) -> None:
        """Choose addresses, and send each agent what its ranks are."""
        about = [agent.about for agent in self._agents]
        addresses = addresses_of(about, self._env.get("PYCOLLECTIVE_INTERFACE", ""))
        size = sum(host.count for host in self._hosts)
        forwarded = {
            name: value
            for name, value in self._env.items()
            if name in (*FORWARDED, *names) or name.startswith(FORWARDED_PREFIXES)
        }
        token = self._env.get("PYCOLLECTIVE_TOKEN") or secrets.token_hex(16)
        job = secrets.token_hex(8)
        rendezvous, master = about[0]["ports"]
        where = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
        for agent, address in zip(self._agents, addresses, strict=True):
            host = agent.host
            log(f"host {host.name}: ranks {host.first} to {host.first + host.count - 1}, address {address}")
            variables = {
                "PYCOLLECTIVE_RENDEZVOUS": f"{ACROSS_HOSTS}{where}:{rendezvous}/{job}",
                "PYCOLLECTIVE_TOKEN": token,
                "PYCOLLECTIVE_INTERFACE": address,
                "PYCOLLECTIVE_LOCAL_SIZE": str(host.count),
                "LOCAL_WORLD_SIZE": str(host.count),
                "MASTER_ADDR": addresses[0],
                "MASTER_PORT": str(master),
            }
            order = {"host": host.name, "first": host.first, "count": host.count, "size": size, "command": words}
            order |= {"tag": tag, "grace": grace, "folder": os.getcwd()}
            order |= {"environment": forwarded, "variables": variables}
            agent.tell(json.dumps(order).encode() + b"\n")

    def wait(self, grace: float) -> int:
        """Copy output until all agents have ended; the first failure ends the others after `grace` seconds."""
        failed, terminate_at = 0, None
        for agent in self._agents:
            stream = agent.process.stdout
            assert stream is not None
            pipe = Pipe(b"", stream, sys.stdout.buffer, agent.heard)
            self._selector.modify(stream, selectors.EVENT_READ, pipe)
        while any(agent.code is None for agent in self._agents):
            for key, _ in self._selector.select(0.05 if len(self._selector.get_map()) else 0):
                if isinstance(key.data, Pipe) and not key.data.pump():
                    self._selector.unregister(key.fileobj)
            if not self._selector.get_map():
                time.sleep(0.02)
            for agent in self._agents:
                if agent.code is None and agent.process.poll() is not None:
                    code = agent.process.returncode
                    agent.code = code if code >= 0 else 128 - code
                    if agent.code and not failed:
                        failed = agent.code
                        terminate_at = time.monotonic() + grace
                        log(f"the ranks of host {agent.host.name} ended with code {failed}; stopping the other hosts")
            now = time.monotonic()
            if terminate_at is not None and now >= terminate_at:
                terminate_at = None
                self.request_end(signal.SIGTERM)
            if self._stopping is not None and now >= self._stopping:
                self._stopping = now + KILL_AFTER
                for agent in self._agents:
                    agent.abandon()
        return failed

    def request_end(self, number: int) -> None:
        """Send a signal to all ranks; those that are left are killed KILL_AFTER seconds later."""
        if self._stopping is None:
            self._stopping = time.monotonic() + KILL_AFTER + 1.0
        for agent in self._agents:
            if agent.code is None:
                agent.tell(b"%d\n" % number)

    def end(self) -> None:
        """However the job ends, no remote shell survives it; their agents end the ranks."""
        for agent in self._agents:
            agent.abandon()
        deadline = time.monotonic() + KILL_AFTER
        for agent in self._agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.process.wait(max(0.0, deadline - time.monotonic()))
        for agent in self._agents:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(agent.process.pid, signal.SIGKILL)
            agent.process.wait()
        self._selector.close()

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Forward the launcher's signals to all ranks while the job runs."""
        before = {number: signal.signal(number, lambda got, _: self.request_end(got)) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _words(self, host: str) -> list[str]:
        agent = [sys.executable, "-m", "pycollective.cli.agent"]
        if not self._shell and host in ("localhost", socket.gethostname()):
            return agent
        return [*(self._shell or DEFAULT_SHELL), host, *map(shlex.quote, agent)]

    def _tried(self, agent: _Agent) -> str:
        return shlex.join(self._words(agent.host.name))

    def _hear(self, agent: _Agent) -> None:
        """Read an agent's report; lines before it are a shell's."""
        assert agent.process.stdout is not None
        data = os.read(agent.process.stdout.fileno(), 65536)
        if not data:
            code = agent.process.wait()
            raise BootstrapError(
                f"host {agent.host.name}: the agent ended with code {code} before it reported; it needs this Python "
                f"and pycollective at the same path (tried: {self._tried(agent)})"
            )
        agent.heard += data
        while not agent.about and b"\n" in agent.heard:
            line, _, agent.heard = agent.heard.partition(b"\n")
            if line.startswith(READY):
                agent.about = json.loads(line[len(READY) :]) | {"host": agent.host.name}

    def _compare(self) -> None:
        """All hosts must have the same version of the package and the same byte order."""
        first = self._agents[0]
        for agent in self._agents:
            for what in ("version", "byteorder"):
                mine, other = agent.about[what], first.about[what]
                if mine != other:
                    raise BootstrapError(
                        f"host {agent.host.name} has pycollective's {what} {mine}, host {first.host.name} {other}"
                    )

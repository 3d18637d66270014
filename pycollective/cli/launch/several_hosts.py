"""`pycollective run -H`: a job on several hosts without MPI, each host's ranks started by an agent in a remote shell.

The agents (agent.py) report their addresses; the launcher chooses those that all hosts share, and sends each agent
through its standard input the command, the environment and the token: none of these is on a command line. The
connection to an agent's standard input is what keeps its ranks alive.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pycollective.cli.launch import signals
from pycollective.cli.launch.agent import LaunchOrder
from pycollective.cli.launch.culprit import Ended, first_and_culprit, verdict
from pycollective.cli.launch.host_variables import host_variables, new_token, refuse_differences
from pycollective.cli.launch.hosts import Host
from pycollective.cli.launch.job import CULPRIT_ENDS, KILL_AFTER, TOGETHER, given_environment, log
from pycollective.cli.launch.output import Screen
from pycollective.cli.launch.remote_agent import START_SECONDS, OutputPipe, RemoteAgent, forwarded_variables
from pycollective.comm.bootstrap.sockets.interfaces import addresses_of
from pycollective.errors import BootstrapError

_LOOK_SECONDS = 0.2
"""How often start_agents looks whether a signal has arrived: its handler does not end a select."""


@dataclass
class _Member:
    """A host of the job."""

    host: Host
    agent: RemoteAgent
    has_order: bool = False
    code: int | None = None

    def has(self, rank: int | None) -> bool:
        """Return whether the rank is of this host."""
        return rank is not None and self.host.first <= rank < self.host.first + self.host.count

    def ends(self, pipe: OutputPipe) -> bool:
        """Return whether this call finds first that its ranks have ended; sets `code`, copies the rest of output."""
        if self.code is not None:
            return False
        self.code = 0 if pipe.done else self.agent.poll()
        with contextlib.suppress(BlockingIOError):  # the agent runs, or a child of a rank holds the pipe
            while self.code is not None and pipe.pump():
                pass
        return self.code is not None


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
    """Start `command` on the hosts, wait for all ranks, and return the exit code of the one that led to the end, or 0.

    Args:
        shell: words of a remote shell, which takes a host and a command; default: ssh, and none for this host.
        interface: as PYCOLLECTIVE_INTERFACE. names: further variables to be forwarded.
        tag, grace, env: as on one host.

    Raises:
        BootstrapError: a host whose agent does not start, or hosts without an address that the others can reach.
    """
    job = _Hosts(hosts, shell, given_environment(env, interface))
    with signals.handled_by(job.request_end, job.pass_on):
        try:
            job.start_agents()
            job.send_orders(list(command), tag, grace, names)
            return job.wait(grace)
        finally:
            job.end()


class _Hosts:
    """The hosts of a job."""

    def __init__(self, hosts: Sequence[Host], shell: Sequence[str], env: dict[str, str]) -> None:
        self._hosts, self._shell, self._env = hosts, shell, env
        self._members: list[_Member] = []
        self._selector = selectors.DefaultSelector()
        self._stopping: float | None = None
        """When all that is left is killed."""

    def start_agents(self) -> None:
        """Start all remote shells, and wait until each agent has reported."""
        for host in self._hosts:
            member = _Member(host, RemoteAgent(self._shell, host.name))
            self._members.append(member)
            self._selector.register(member.agent.output, selectors.EVENT_READ, member.agent)
        deadline = time.monotonic() + START_SECONDS
        while silent := [member for member in self._members if not member.agent.about]:
            ready = self._selector.select(min(_LOOK_SECONDS, max(0.0, deadline - time.monotonic())))
            if self._stopping is not None:
                raise BootstrapError("interrupted before the ranks were started")
            if time.monotonic() >= deadline:
                names = ", ".join(member.host.name for member in silent)
                tried = silent[0].agent.tried
                raise BootstrapError(f"no answer from {names} within {START_SECONDS:.0f} s (tried: {tried})")
            for key, _ in ready:
                if key.data.hear():
                    self._selector.unregister(key.fileobj)
        refuse_differences([member.agent.about for member in self._members])

    def send_orders(self, words: list[str], tag: bool, grace: float, names: Sequence[str]) -> None:
        """Choose addresses, and send each agent what its ranks are."""
        about = [member.agent.about for member in self._members]
        size = sum(host.count for host in self._hosts)
        forwarded = forwarded_variables(self._env, names)
        token = self._env.get("PYCOLLECTIVE_TOKEN") or new_token()
        addresses = addresses_of(about, self._env.get("PYCOLLECTIVE_INTERFACE", ""))
        counts = [host.count for host in self._hosts]
        variables_of = host_variables(about, addresses, counts, token)
        for member, address, variables in zip(self._members, addresses, variables_of, strict=True):
            host = member.host
            log(f"host {host.name}: ranks {host.first} to {host.first + host.count - 1}, address {address}")
            order = LaunchOrder(host.name, words, forwarded, variables, size, host.first, host.count, tag, grace)
            member.agent.send(order.encode())
            member.has_order = True

    def wait(self, grace: float) -> int:
        """Copy output until all agents have ended; the first failure ends the others after `grace` seconds."""
        failed, failed_at, terminate_at, lost = 0, 0.0, None, False
        ended: list[Ended] = []
        screen = Screen()
        pipes = [member.agent.pipe(screen) for member in self._members]
        for pipe in pipes:
            self._selector.register(pipe.source, selectors.EVENT_READ, pipe)
        while any(member.code is None for member in self._members):
            self._copy_output()
            for member, pipe in zip(self._members, pipes, strict=True):
                if not member.ends(pipe):
                    continue
                ended += pipe.failed
                if member.code and not failed:
                    failed, failed_at = member.code, time.monotonic()
                    lost = not pipe.failed
                    if lost:
                        log(f"the ranks of host {member.host.name} ended with code {failed}; stopping the other hosts")
                if failed and self._stopping is None:
                    awaited = any(self._runs(each.blamed) for each in ended)
                    terminate_at = failed_at + max(grace, CULPRIT_ENDS if awaited else TOGETHER)
            now = time.monotonic()
            if terminate_at is not None and now >= terminate_at:
                terminate_at = None
                self.request_end(signal.SIGTERM)
            if self._stopping is not None and now >= self._stopping:
                self._stopping = now + KILL_AFTER
                for member in self._members:
                    member.agent.abandon()
        found = first_and_culprit([*ended, *self._blamed(ended)])
        if found is None or (lost and not found[0].failed):
            return failed
        code, sentence = verdict(*found)
        log(sentence)
        return code

    def _runs(self, rank: int | None) -> bool:
        """Return whether it is of a host whose agent has not ended."""
        return any(member.code is None and member.has(rank) for member in self._members)

    def _blamed(self, ended: Sequence[Ended]) -> list[Ended]:
        """The ranks blamed by others of which their agents have told nothing."""
        known = {each.rank for each in ended}
        return [
            Ended(
                rank, f"rank {rank} (host {member.host.name})", -signal.SIGTERM if member.code else 0, bool(member.code)
            )
            for rank in {each.blamed for each in ended} - known
            for member in self._members
            if rank is not None and member.has(rank)
        ]

    def _copy_output(self) -> None:
        if not self._selector.get_map():
            time.sleep(0.02)
            return
        for key, _ in self._selector.select(0.05):
            if not key.data.pump():
                self._selector.unregister(key.fileobj)
        now = time.monotonic()
        for key in self._selector.get_map().values():
            key.data.settle(now)

    def request_end(self, number: int) -> None:
        """Send a signal to all ranks; those that are left are killed KILL_AFTER seconds later."""
        if self._stopping is None:
            self._stopping = time.monotonic() + KILL_AFTER + 1.0
        self.pass_on(number)

    def pass_on(self, number: int) -> None:
        """Send a signal to all ranks."""
        for member in self._members:
            if member.code is None and member.has_order:
                member.agent.send(b"%d\n" % number)

    def end(self) -> None:
        """However the job ends, no remote shell survives it; their agents end the ranks."""
        for member in self._members:
            member.agent.abandon()
        deadline = time.monotonic() + KILL_AFTER
        for member in self._members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.agent.process.wait(max(0.0, deadline - time.monotonic()))
        for member in self._members:
            member.agent.kill()
            member.agent.process.wait()
        self._selector.close()
        for member in self._members:
            member.agent.close()

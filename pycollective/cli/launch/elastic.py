"""`pycollective run --host-discovery-script`: an elastic job, each of its workers started by an agent of its own.

An agent is started by the remote shell, as in several_hosts.py, and reports its host's addresses; then it gets the
command, the environment and the token through its standard input. When that ends, because the launcher has, it kills
its worker.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pycollective import settings
from pycollective.cli.launch.agent import LaunchOrder
from pycollective.cli.launch.host_variables import describe, refuse_differences
from pycollective.cli.launch.job import given_environment, log
from pycollective.cli.launch.output import Pipe, Screen
from pycollective.cli.launch.remote_agent import START_SECONDS, RemoteAgent, forwarded_variables
from pycollective.cli.launch.signals import ENDING
from pycollective.comm.bootstrap.launchers import ELASTIC_DRIVER
from pycollective.comm.bootstrap.sockets.authentication import parse_token
from pycollective.comm.bootstrap.sockets.interfaces import addresses_of
from pycollective.elastic import Discovery, Driver, Limits, Task
from pycollective.errors import BootstrapError

_KILL_SECONDS = 2.0  # for the agent to end after its worker was killed; then its remote shell is
_READS = 64  # of a worker's output, in one call of `poll`
_NO_AGENT = 255  # the exit code of a worker whose agent did not start; as ssh's


def make_driver(
    command: Sequence[str],
    discovery: Discovery,
    limits: Limits,
    *,
    shell: Sequence[str] = (),
    interface: str = "",
    tag: bool = False,
    env: Mapping[str, str] | None = None,
    names: Sequence[str] = (),
    task: Task | None = None,
) -> Driver:
    """The driver of an elastic job, whose `run` runs it.

    Args:
        shell, interface, env, names: as for several_hosts.run.
        task: as for Driver.
        tag: write `[host:slot] ` before each line of output.
    """
    given = given_environment(env, interface)
    environment = forwarded_variables(given, names)
    environment.setdefault("OMP_NUM_THREADS", "1")
    interface = given.get("PYCOLLECTIVE_INTERFACE", "")
    workers = _AgentWorkers(LaunchOrder("", list(command), environment, {}, tag=tag), shell, interface)
    secret = settings.read("PYCOLLECTIVE_TOKEN", given)
    driver = workers.driver = Driver(
        workers,
        discovery,
        limits,
        token=parse_token(secret) if secret else None,
        report=log,
        stored=_watched(settings.read("PYCOLLECTIVE_ELASTIC_FILE", given)),
        task=task,
    )
    return driver


def _watched(name: str) -> Callable[[], object] | None:
    """Make what tells Driver whether the file has changed."""
    file = Path(name)
    return (lambda: file.stat().st_mtime_ns if file.exists() else 0) if name else None


class _AgentWorkers:
    """The Workers of the driver.

    Args:
        order: for each of them, but for the host and the variables.
    """

    driver: Driver

    def __init__(self, order: LaunchOrder, shell: Sequence[str], interface: str) -> None:
        self._order, self._shell, self._interface = order, shell, interface
        self._about = describe(0, 0) | {"host": "of the launcher"}
        self._screen = Screen()

    def start(self, host: str, slot: int, environment: Mapping[str, str]) -> _AgentHandle:
        """See Workers.start."""
        order = replace(self._order, host=host, worker=f"{host}:{slot}", variables=dict(environment))
        return _AgentHandle(RemoteAgent(self._shell, host), order, self._driver_for, self._screen)

    def _driver_for(self, about: Mapping[str, Any]) -> str:
        """Where the driver listens for workers of a host that is so described.

        Raises:
            BootstrapError: the host cannot reach this one, or has another version of the package.
        """
        refuse_differences([self._about, about])
        return self.driver.listen(addresses_of([self._about, about], self._interface)[0])


class _AgentHandle:
    """One worker and its agent. See WorkerHandle.

    Args:
        driver_for: where the driver listens for workers of a described host.
    """

    def __init__(
        self, agent: RemoteAgent, order: LaunchOrder, driver_for: Callable[[Mapping[str, Any]], str], screen: Screen
    ) -> None:
        self._agent, self._order, self._driver_for, self._screen = agent, order, driver_for, screen
        self._output: Pipe | None = None
        """Set when the agent has reported and got its order."""
        self._deadline = time.monotonic() + START_SECONDS
        """When the agent must have reported; later, when a killed worker's agent must have ended."""

    def poll(self) -> int | None:
        """The exit code. Also copies output, and gives the agent its order."""
        code = self._agent.poll()
        try:
            if self._output is None:
                self._hear()
            for _ in range(_READS):
                if self._output is None or not self._output.pump():
                    break
        except BlockingIOError:
            if self._output is not None:
                self._output.settle(time.monotonic())
        except BootstrapError as error:
            log(str(error))
            self._kill()
        if code is None and time.monotonic() > self._deadline:
            if self._output is None:
                tried = self._agent.tried
                log(f"host {self._order.host}: no answer within {START_SECONDS:.0f} s (tried: {tried})")
            self._kill()
        if code is None:
            return None
        self._agent.close()
        return code if self._output is not None else code or _NO_AGENT

    def signal(self, number: int) -> None:
        """Through the agent, if it has started."""
        if number == signal.SIGKILL:
            self._deadline = min(self._deadline, time.monotonic() + _KILL_SECONDS)
            self._agent.abandon()
        elif self._output is not None:
            self._agent.send(b"%d\n" % number)
        elif number in ENDING:
            self._kill()

    def _hear(self) -> None:
        if not self._agent.hear():
            return
        variables = self._order.variables | {ELASTIC_DRIVER: self._driver_for(self._agent.about)}
        self._agent.send(replace(self._order, variables=variables).encode())
        self._output, self._deadline = self._agent.pipe(self._screen), float("inf")

    def _kill(self) -> None:
        self._agent.kill()
        self._deadline = float("inf")

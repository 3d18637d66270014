"""A job that loses and gains workers: actors that the elastic driver starts and watches."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pycollective import checks, horovod
from pycollective.elastic import Driver, Limits
from pycollective.ray.calls import LOOK_EVERY, Callbacks, Log, reports_a_loss
from pycollective.ray.resources import MiniSettings, RayHostDiscovery, Resources
from pycollective.ray.worker import BaseHorovodWorker, Executable, FunctionCall

_log = logging.getLogger(__name__)
_KILLED = 128 + signal.SIGKILL


class ElasticJob:
    """The workers of an elastic RayExecutor; each call of `run` is a job of its own. The methods are StaticJob's.

    Args: as for RayExecutor; least: min_workers, most: max_workers.
    """

    def __init__(
        self,
        settings: MiniSettings,
        resources: Resources,
        least: int,
        most: int | None,
        reset_limit: int | None,
        cooldown_range: Sequence[float] | None,
        timeout: float,
        override_discovery: bool,
    ) -> None:
        cooldown = None
        if cooldown_range is not None:
            low, high = (checks.number(each, "cooldown_range", 0) for each in cooldown_range)
            cooldown = low, high
        if reset_limit is not None:
            checks.integer(reset_limit, "reset_limit", 0)
        if settings.nics is not None and len(settings.nics) != 1:
            raise ValueError("an elastic job takes one network interface, or none: nics of create_settings")
        if not override_discovery and settings.discovery is None:
            raise ValueError("override_discovery=False needs settings.discovery")
        self._limits = Limits(least, least, most, reset_limit, cooldown, checks.number(timeout, "elastic_timeout", 0))
        self._settings, self._resources = settings, resources
        own = RayHostDiscovery(resources.use_gpu, resources.cpus, resources.gpus)
        self._discovery = own if override_discovery else settings.discovery
        self._prepared: tuple[Any, dict[str, str]] | None = None

    def start(self, executable: Executable, extra_env_vars: Mapping[str, Any]) -> None:
        """Keep what the workers will need; they are started by `run`."""
        variables = {name: str(value) for name, value in extra_env_vars.items()}
        for name in self._settings.nics or ():
            variables.setdefault("PYCOLLECTIVE_INTERFACE", name)
        variables.setdefault("PYCOLLECTIVE_INIT_TIMEOUT", f"{self._settings.timeout_s:g}")
        self._prepared = ray.put(executable), variables

    def run_remote(self, task: FunctionCall) -> list[Any]:
        raise NotImplementedError(
            "run_remote: the workers of an elastic job may be replaced, and their results with them"
        )

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        raise NotImplementedError("execute_single: an elastic job has workers only during run and execute")

    def shutdown(self) -> None:
        """Forget what `start` was given; no worker outlives a call."""
        self._prepared = None

    def call(self, method: str, argument: Any, callbacks: Callbacks) -> list[Any]:
        if self._prepared is None:
            raise RuntimeError("start() has not been called, or shutdown() was")
        with contextlib.closing(Log(callbacks)) as log:
            workers = _Actors(self._resources, *self._prepared, (method, ray.put(argument)), log, self._discover)
            driver = Driver(workers, self._discover, self._limits, address=_own_address(), report=_log.warning)
            try:
                code = _run(driver, log)
                if code == 0:
                    return [cast(_Worker, member.handle).value for member in driver.members()]
                errors = [worker.error for worker in reversed(workers.started) if worker.error is not None]
                raise RuntimeError(driver.failure) from min(errors, key=_is_consequence, default=None)
            finally:
                for worker in workers.started:
                    worker.signal(signal.SIGKILL)

    def _discover(self) -> dict[str, int]:
        found: dict[str, int] = self._discovery.find_available_hosts_and_slots()
        return found


def _is_consequence(error: Exception) -> tuple[bool, bool]:
    """Sorts exceptions of the function before workers that have ended, as the driver also ends workers."""
    return reports_a_loss(error), isinstance(error, RayActorError)


@dataclass
class _Actors:
    """Starts workers for the driver (elastic.Workers)."""

    resources: Resources
    executable: Any
    variables: Mapping[str, str]
    task: tuple[str, Any]
    log: Log
    discover: Callable[[], Mapping[str, int]]
    started: list[_Worker] = field(default_factory=list)

    def start(self, host: str, slot: int, environment: Mapping[str, str]) -> _Worker:
        """Start a worker; it is pending until Ray has its resources."""
        actor = ray.remote(BaseHorovodWorker).options(**self.resources.options(), **_on(host)).remote()
        variables = {"PYCOLLECTIVE_HOST": host, **self.variables, **environment}
        if self.resources.use_gpu:  # of all ranks there, so that each may use the device of its local rank
            gpus = self.discover().get(host, 1) * self.resources.gpu_count
            variables.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus))))
        actor.update_env_vars.remote(variables, horovod.is_installed())
        actor.set_queue.remote(self.log.queue)
        made = actor.start_executable.remote(self.executable)
        worker = _Worker(actor, actor.take_part.remote(made, *self.task))
        self.started.append(worker)
        return worker


@dataclass
class _Worker:
    """An actor that takes part in the job by one call (elastic.WorkerHandle).

    Attributes:
        call: Ray's reference. code: see `poll`.
        value: what the function has returned. error: with which it has ended instead.
    """

    actor: Any
    call: Any
    code: int | None = None
    value: Any = None
    error: Exception | None = None

    def poll(self) -> int | None:
        """0 if the function has returned, 1 if it has raised, 137 if its process has ended, None: it runs."""
        if self.code is None and ray.wait([self.call], timeout=0)[0]:
            try:
                needed, self.value = ray.get(self.call)
                self.code = 0
            except RayActorError as error:
                self.code, self.error = _KILLED, error
            except Exception as error:
                self.code, self.error = 1, error
            if self.code or not needed:  # its resources are needed; the others stay until their peers have ended too
                ray.kill(self.actor)
        return self.code

    def signal(self, number: int) -> None:
        """End the process: Ray can only kill it."""
        ray.kill(self.actor)


def _run(driver: Driver, log: Log) -> int:
    """The job's exit code. Callbacks are called in this thread."""
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="pycollective-elastic") as pool:
        job = pool.submit(driver.run)
        try:
            while not concurrent.futures.wait([job], timeout=LOOK_EVERY).done:
                log.pass_on()
            log.pass_on()
        except BaseException:
            driver.stop(signal.SIGTERM)
            raise
        return job.result()


def _on(host: str) -> dict[str, Any]:
    """Options of an actor on a node: by Ray's identifier, or by its address from a discovery of the user."""
    if any(node["NodeID"] == host for node in ray.nodes()):
        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(host, soft=False)}
    return {"resources": {f"node:{host}": 0.001}}


def _own_address() -> str:
    here = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == here)

"""The actor that is one rank."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ray

from pycollective import horovod
from pycollective.cli.launch.host_variables import describe
from pycollective.cli.launch.one_host import held_port, job_environment
from pycollective.comm.bootstrap import elastic
from pycollective.ray import ray_logger

Executable: TypeAlias = tuple[Callable[..., Any] | None, Sequence[Any], Mapping[str, Any]]
"""A class, or None, and the arguments with which it is called."""
FunctionCall: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class BaseHorovodWorker:
    """One rank's process, as an actor: `ray.remote(BaseHorovodWorker)`. Only the executor needs to use it.

    Attributes:
        executable: what `execute` passes to functions; None until `start_executable` has made one.
    """

    executable: Any = None

    def __init__(self) -> None:
        self._rank: int | None = None
        self._held = contextlib.ExitStack()

    def __repr__(self) -> str:
        """How Ray names the actor in errors and in front of its output."""
        generation = elastic.newest()
        rank = self._rank if generation is None else generation.rank
        return f"{'a worker' if rank is None else f'rank {rank}'} on host {self.hostname()}"

    def node_id(self) -> str:
        """Ray's identifier of this node: 56 hexadecimal digits."""
        return str(ray.get_runtime_context().get_node_id())

    def hostname(self) -> str:
        return socket.gethostname()

    def get_gpu_ids(self) -> list[str]:
        """The GPUs that Ray has reserved for this worker, as in CUDA_VISIBLE_DEVICES."""
        return [str(gpu) for gpu in ray.get_runtime_context().get_accelerator_ids().get("GPU", [])]

    def update_env_vars(self, env_vars: Mapping[str, Any], provide_horovod: bool = False) -> None:
        """Set environment variables of this process, to the strings of the values.

        Args:
            provide_horovod: whether `import horovod` is to find pycollective.horovod here.
        """
        if provide_horovod:
            horovod.install()
        os.environ.update({name: str(value) for name, value in env_vars.items()})

    def env_vars(self) -> dict[str, str]:
        """The environment of this process."""
        return dict(os.environ)

    def describe(self) -> dict[str, Any]:
        """This process's host, for `host_variables`; holds two ports until the process ends."""
        rendezvous, master = (self._held.enter_context(held_port("")) for _ in range(2))
        about = {"host": self.hostname(), "node": self.node_id(), "gpus": self.get_gpu_ids()}
        return describe(rendezvous, master) | about

    def become(self, rank: int, size: int, env_vars: Mapping[str, str], provide_horovod: bool) -> None:
        """Take a rank: its variables replace those of any other launcher. Otherwise as `update_env_vars`."""
        self._rank = rank
        kept = {**job_environment(size, 0, os.environ), **env_vars}
        for name in os.environ.keys() - kept.keys():
            del os.environ[name]
        self.update_env_vars(kept, provide_horovod)

    def start_executable(self, made_by: Executable) -> None:
        """Make `executable`."""
        executable_cls, args, kwargs = made_by
        if executable_cls is not None:
            self.executable = executable_cls(*args, **kwargs)

    def execute(self, func: Callable[[Any], Any]) -> Any:
        """func(executable)."""
        return func(self.executable)

    def call(self, task: FunctionCall) -> Any:
        """A function with its arguments."""
        func, args, kwargs = task
        return func(*args, **kwargs)

    def take_part(self, _made: None, method: str, argument: Any) -> tuple[bool, Any]:
        """`execute` or `call` in an elastic job: (whether this worker is still needed, the result).

        Raises:
            RuntimeError: the function has called sys.exit with a failure, which Ray would take for the actor's end.
        """
        try:
            return True, getattr(self, method)(argument)
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise RuntimeError(f"{self!r}: sys.exit({ended.code!r})") from ended
            return False, None
        finally:
            if (driver := elastic.connection()) is not None:
                driver.leave()  # the process remains until its peers have ended too, or it is killed

    def set_queue(self, queue: Any) -> None:
        """Where ray_logger.log puts values; None: nowhere."""
        ray_logger.configure(queue)

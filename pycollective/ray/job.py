"""What a RayExecutor does, whether its set of workers stays the same (static_job.py) or not (elastic_job.py)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycollective.ray.calls import Callbacks


class Job(ABC):
    """The workers of a RayExecutor, which documents the methods."""

    @abstractmethod
    def start(
        self,
        executable_cls: Callable[..., Any] | None,
        executable_args: Sequence[Any],
        executable_kwargs: Mapping[str, Any],
        extra_env_vars: Mapping[str, Any],
    ) -> None:
        """See RayExecutor."""

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks) -> list[Any]:
        """See RayExecutor."""
        return self._call("execute", fn, callbacks)

    def run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], callbacks: Callbacks
    ) -> list[Any]:
        """See RayExecutor."""
        return self._call("call", (fn, args, kwargs), callbacks)

    @abstractmethod
    def run_remote(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """See RayExecutor."""

    @abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """See RayExecutor."""

    @abstractmethod
    def shutdown(self) -> None:
        """See RayExecutor."""

    @abstractmethod
    def _call(self, method: str, argument: Any, callbacks: Callbacks) -> list[Any]:
        """Call a method of every worker's BaseHorovodWorker with an argument; the results by rank."""

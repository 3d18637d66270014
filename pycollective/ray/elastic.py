"""`ElasticRayExecutor`: Horovod's older interface of elastic jobs on Ray. New programs use RayExecutor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pycollective.ray.calls import Callbacks
from pycollective.ray.resources import MiniSettings, RayHostDiscovery
from pycollective.ray.runner import RayExecutor

__all__ = ["ElasticRayExecutor", "RayHostDiscovery"]


@dataclass
class ElasticSettings(MiniSettings):
    """MiniSettings with the limits of an elastic job."""

    min_num_proc: int = 1
    max_num_proc: int | None = None
    reset_limit: int | None = None
    elastic_timeout: float = 600


class ElasticRayExecutor:
    """An elastic job on all nodes of the Ray cluster.

    Args:
        settings: from `create_settings`.
        use_gpu, cpus_per_slot, gpus_per_slot: as use_gpu, cpus_per_worker and gpus_per_worker of RayExecutor.
        env_vars: variables of the environment of all ranks.
        override_discovery: as for RayExecutor.

    Raises:
        as RayExecutor.
    """

    def __init__(
        self,
        settings: ElasticSettings,
        use_gpu: bool = False,
        cpus_per_slot: float = 1,
        gpus_per_slot: int | None = None,
        env_vars: Mapping[str, Any] | None = None,
        override_discovery: bool = True,
    ) -> None:
        self._variables = env_vars
        self._executor = RayExecutor(
            settings,
            min_workers=settings.min_num_proc,
            max_workers=settings.max_num_proc,
            reset_limit=settings.reset_limit,
            elastic_timeout=settings.elastic_timeout,
            use_gpu=use_gpu,
            cpus_per_worker=cpus_per_slot,
            gpus_per_worker=gpus_per_slot,
            override_discovery=override_discovery,
        )

    @staticmethod
    def create_settings(
        min_num_proc: int = 1,
        max_num_proc: int | None = None,
        reset_limit: int | None = None,
        elastic_timeout: float = 600,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        nics: Any = None,
        min_np: int | None = None,
        max_np: int | None = None,
        **kwargs: Any,
    ) -> ElasticSettings:
        """The settings of a job.

        Args:
            min_num_proc, max_num_proc: as min_workers and max_workers of RayExecutor; min_np, max_np: older names.
            reset_limit, elastic_timeout: as for RayExecutor.
            timeout_s, ssh_identity_file, nics: as for RayExecutor.create_settings.
            kwargs: further settings of Horovod's launcher; ignored.
        """
        base = RayExecutor.create_settings(timeout_s=timeout_s, nics=nics)
        least = min_num_proc if min_np is None else min_np
        most = max_num_proc if max_np is None else max_np
        return ElasticSettings(
            **vars(base),
            min_num_proc=least,
            max_num_proc=most,
            reset_limit=reset_limit,
            elastic_timeout=elastic_timeout,
        )

    def start(self) -> None:
        """Prepare the job; `run` starts the workers."""
        self._executor.start(extra_env_vars=self._variables)

    def run(self, worker_fn: Callable[[], Any], callbacks: Callbacks = None) -> list[Any]:
        """Call worker_fn() on every rank; returns the results by rank. See RayExecutor.run."""
        return self._executor.run(worker_fn, callbacks=callbacks)

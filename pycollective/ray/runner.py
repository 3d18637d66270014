"""`RayExecutor`: starts ranks on a Ray cluster and calls functions on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pycollective import checks
from pycollective.ray.calls import Callbacks
from pycollective.ray.elastic_job import ElasticJob
from pycollective.ray.resources import MiniSettings, Resources
from pycollective.ray.static_job import StaticJob

__all__ = ["MiniSettings", "RayExecutor"]


class RayExecutor:
    """Ranks as actors of the Ray cluster to which this process is connected (`ray.init`).

    Static, with `num_workers` or `num_hosts`, or elastic, with `min_workers`. See docs/from-horovod.md.

    Args:
        settings: from `create_settings`.
        num_workers: number of ranks, packed onto few nodes.
        num_hosts: instead of num_workers: number of nodes, each with
        num_workers_per_host: ranks.
        cpus_per_worker: CPUs that Ray reserves for each rank.
        use_gpu: whether ranks have GPUs.
        gpus_per_worker: GPUs that Ray reserves for each rank; 1 by default. Every rank sees those of all ranks of its
            node; with one each, device `local_rank()` is its own.
        use_current_placement_group: if the caller runs in a placement group, place the ranks in its bundles.
        min_workers: elastic: fewest ranks to start and to continue with.
        max_workers: most ranks; by default as many as the cluster has room for.
        reset_limit: how often the ranks may change until the job fails; None: unlimited.
        cooldown_range: least and most seconds until a node on which ranks have failed is used again; None: never.
        elastic_timeout: seconds to wait for min_workers.
        override_discovery: take the nodes from Ray; False: from settings.discovery, an object whose
            find_available_hosts_and_slots() returns a number of ranks for each node, by its address.

    Raises:
        ValueError, TypeError: arguments that exclude each other, or are out of range.
    """

    def __init__(
        self,
        settings: MiniSettings,
        num_workers: int | None = None,
        num_hosts: int | None = None,
        num_workers_per_host: int | None = 1,
        cpus_per_worker: float = 1,
        use_gpu: bool = False,
        gpus_per_worker: int | None = None,
        use_current_placement_group: bool = True,
        min_workers: int | None = None,
        max_workers: int | None = None,
        reset_limit: int | None = None,
        cooldown_range: Sequence[float] | None = None,
        elastic_timeout: float = 600,
        override_discovery: bool = True,
    ) -> None:
        checks.instance(settings, "settings", MiniSettings, "a result of RayExecutor.create_settings")
        resources = Resources(cpus_per_worker, use_gpu, gpus_per_worker)
        sizes = {"num_workers": num_workers, "num_hosts": num_hosts, "min_workers": min_workers}
        given = [name for name, value in sizes.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(sizes)} is needed, not {' and '.join(given) or 'none'}")
        if max_workers is not None and min_workers is None:
            raise ValueError("max_workers needs min_workers")
        count = checks.integer(sizes[given[0]], given[0], 1)
        self._job: StaticJob | ElasticJob
        if min_workers is not None:
            most = None if max_workers is None else checks.integer(max_workers, "max_workers", count)
            self._job = ElasticJob(
                settings, resources, count, most, reset_limit, cooldown_range, elastic_timeout, override_discovery
            )
            return
        per_host = None
        if num_hosts is not None:
            per_host = checks.integer(num_workers_per_host, "num_workers_per_host", 1)
            count *= per_host
        self._job = StaticJob(settings, count, per_host, resources, use_current_placement_group)

    @classmethod
    def create_settings(
        cls,
        timeout_s: float = 30,
        ssh_identity_file: str | None = None,
        ssh_str: str | None = None,
        placement_group_timeout_s: float = 100,
        nics: Collection[str] | None = None,
    ) -> MiniSettings:
        """The settings of a job.

        Args:
            timeout_s: seconds that init() waits for the other ranks (PYCOLLECTIVE_INIT_TIMEOUT).
            ssh_identity_file, ssh_str: accepted and ignored: nothing is started through ssh.
            placement_group_timeout_s: seconds that Ray has to reserve resources, and again to start the workers.
            nics: names of the network interfaces that may be used between nodes; None: all.

        Raises:
            ValueError, TypeError: a number of seconds that is not positive, or nics of another type.
        """
        checks.number(timeout_s, "timeout_s", above=0)
        checks.number(placement_group_timeout_s, "placement_group_timeout_s", above=0)
        if nics is not None:
            nics = [checks.text(name, "an element of nics") for name in checks.items(nics, "nics", "names")]
        return MiniSettings(timeout_s, placement_group_timeout_s, nics)

    def start(
        self,
        executable_cls: Callable[..., Any] | None = None,
        executable_args: Sequence[Any] | None = None,
        executable_kwargs: Mapping[str, Any] | None = None,
        extra_env_vars: Mapping[str, Any] | None = None,
    ) -> None:
        """Start the workers; returns when all have started.

        Args:
            executable_cls: called on every rank, with executable_args and executable_kwargs; what it returns is the
                argument of functions given to `execute`.
            extra_env_vars: variables of the environment of all ranks; the settings of the caller's are not passed on.

        Raises:
            TimeoutError: Ray has not had the resources for all workers in time.
            BootstrapError: the nodes have different versions of pycollective, or share no network.
            RuntimeError: the executor has been started already, or is elastic and an executable was given.
            Any exception of executable_cls.
        """
        executable = executable_cls, executable_args or (), executable_kwargs or {}
        self._job.start(executable, extra_env_vars or {})

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        callbacks: Callbacks = None,
    ) -> list[Any]:
        """Call fn(*args, **kwargs) on every rank; returns the results by rank.

        Args:
            callbacks: called in this process with each value that a rank passes to ray_logger.log meanwhile.

        Raises:
            RuntimeError: the workers have not been started, or were ended.
            PeerLostError: the process of a rank has ended (not for elastic jobs, which replace it).
            Any exception of fn, as Ray raises it: an instance of its type, whose text names rank and host. The other
            ranks have five seconds to end their call too; then all workers are ended.
        """
        return self._job.call("call", (fn, tuple(args or ()), dict(kwargs or {})), callbacks)

    def execute(self, fn: Callable[[Any], Any], callbacks: Callbacks = None) -> list[Any]:
        """Call fn(executable) on every rank, with None if there is no executable; otherwise as `run`."""
        return self._job.call("execute", fn, callbacks)

    def run_remote(
        self, fn: Callable[..., Any], args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Begin a call of fn(*args, **kwargs) on every rank; returns Ray's references of the results, by rank.

        Raises:
            RuntimeError: there are no workers. NotImplementedError: the job is elastic.
        """
        return self._job.run_remote((fn, tuple(args or ()), dict(kwargs or {})))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """Call fn(executable) on rank 0 only; returns the result.

        Raises:
            RuntimeError: there are no workers. NotImplementedError: the job is elastic. Any exception of fn.
        """
        return self._job.execute_single(fn)

    def shutdown(self) -> None:
        """End the workers and remove the placement group, unless it is the caller's. May be called twice."""
        self._job.shutdown()

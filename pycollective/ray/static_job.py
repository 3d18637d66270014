"""A job whose workers stay the same: placed by a placement group, ranked by node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group, remove_placement_group

from pycollective import horovod
from pycollective.cli.launch.host_variables import host_variables, new_token, refuse_differences
from pycollective.cli.launch.job import KILL_AFTER, rank_environment
from pycollective.comm.bootstrap.nodes import place
from pycollective.comm.bootstrap.sockets.interfaces import addresses_of
from pycollective.ray.calls import Callbacks, CallOutcome, Log, wait_for
from pycollective.ray.resources import MiniSettings, Resources, in_group, reserve
from pycollective.ray.worker import BaseHorovodWorker, Executable, FunctionCall


class StaticJob:
    """The workers of a RayExecutor that is not elastic; the executor documents the methods.

    Args:
        count: number of workers; per_host: as many on each of count / per_host nodes, None: wherever there is room.
        inherit: use the placement group in which the caller runs, if it runs in one.
    """

    def __init__(
        self, settings: MiniSettings, count: int, per_host: int | None, resources: Resources, inherit: bool
    ) -> None:
        self._settings, self._count, self._per_host = settings, count, per_host
        self._resources, self._inherit = resources, inherit
        self._workers: list[Any] = []
        self._hosts: list[str] = []
        self._group: PlacementGroup | None = None
        """To be removed; None if it is not ours."""
        self._ended = "start() has not been called"

    def start(self, executable: Executable, extra_env_vars: Mapping[str, Any]) -> None:
        if self._workers:
            raise RuntimeError("the workers run already: call shutdown() first")
        try:
            self._workers = self._place()
            self._rank(extra_env_vars)
            self._ended = ""
            self.call("start_executable", executable, None)
        except BaseException:
            self.shutdown()
            raise

    def _place(self) -> list[Any]:
        """Actors for all workers, perhaps not started yet."""
        actor, options = ray.remote(BaseHorovodWorker), self._resources.options()
        seconds = self._settings.placement_group_timeout_s
        inherited = get_current_placement_group() if self._inherit else None
        if inherited is not None:
            return [actor.options(**options, **in_group(inherited, -1)).remote() for _ in range(self._count)]
        per_bundle = self._per_host or 1
        bundles = [self._resources.bundle(per_bundle)] * (self._count // per_bundle)
        with reserve(bundles, "STRICT_SPREAD" if self._per_host else "PACK", seconds) as self._group:
            places = [in_group(self._group, i // per_bundle) for i in range(self._count)]
            return [actor.options(**options, **where).remote() for where in places]

    def _rank(self, extra: Mapping[str, Any]) -> None:
        """Sort the workers so that the ranks of a node are contiguous, and give each its environment."""
        seconds = self._settings.placement_group_timeout_s
        calls = [worker.describe.remote() for worker in self._workers]
        if len(ray.wait(calls, num_returns=len(calls), timeout=seconds)[0]) < len(calls):
            raise TimeoutError(
                f"not all of {len(calls)} workers have started within {seconds:g} s; "
                f"each needs {self._resources.bundle()}, and available are {ray.available_resources()}"
            )
        about = ray.get(calls)
        refuse_differences(about)
        order = by_node([each["node"] for each in about])
        self._workers, about = [self._workers[i] for i in order], [about[i] for i in order]
        self._hosts = [f"{each['host']} (Ray node {each['node']})" for each in about]
        variables = environments(about, self._settings)
        given = {name: str(value) for name, value in extra.items()}
        provide = horovod.is_installed()
        ray.get([w.become.remote(r, len(about), variables[r] | given, provide) for r, w in enumerate(self._workers)])

    def run_remote(self, task: FunctionCall) -> list[Any]:
        self._require_workers()
        stored = ray.put(task)
        return [worker.call.remote(stored) for worker in self._workers]

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        self._require_workers()
        return ray.get(self._workers[0].execute.remote(fn))

    def shutdown(self) -> None:
        """End the workers, after their calls if they end within KILL_AFTER seconds, and remove the placement group."""
        if not self._ended:
            ray.wait([w.__ray_terminate__.remote() for w in self._workers], num_returns=self._count, timeout=KILL_AFTER)
        self._end("shutdown() was called")
        self._workers = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def call(self, method: str, argument: Any, callbacks: Callbacks) -> list[Any]:
        """Call a method of every worker's BaseHorovodWorker with an argument; the results by rank."""
        self._require_workers()
        stored = ray.put(argument)  # pickled once, here
        with contextlib.closing(Log(callbacks)) as log:
            calls = []
            for worker in self._workers:
                worker.set_queue.remote(log.queue)
                calls.append(getattr(worker, method).remote(stored))
            outcome = wait_for(calls, log)
        return self._results(outcome)

    def _results(self, outcome: CallOutcome) -> list[Any]:
        """The results by rank; the workers remain after an error only if none is still in its call."""
        if not outcome.errors:
            return [outcome.results[rank] for rank in range(self._count)]
        error = outcome.first_error(self._hosts)
        if outcome.running or outcome.lost:
            self._end(f"a call has failed: {str(error).splitlines()[-1]}")
        raise error

    def _require_workers(self) -> None:
        if self._ended:
            raise RuntimeError(f"there are no workers, because {self._ended}; shutdown() and start() start new ones")

    def _end(self, why: str) -> None:
        for worker in self._workers:
            ray.kill(worker)
        self._ended = why


def by_node(nodes: Sequence[str]) -> list[int]:
    """The workers on given nodes, so that those of a node are adjacent, in the order of each node's first worker."""
    position = {node: i for i, node in reversed(list(enumerate(nodes)))}
    return sorted(range(len(nodes)), key=lambda i: position[nodes[i]])


def environments(about: Sequence[Mapping[str, Any]], settings: MiniSettings) -> list[dict[str, str]]:
    """The variables of each rank.

    Args:
        about: their descriptions, by rank; those of a node are adjacent.
    """
    placed = [place([each["node"].encode() for each in about], rank) for rank in range(len(about))]
    first = placed[0]
    hosts = [about[first.ranks(node)[0]] for node in range(first.count)]
    counts = [len(first.ranks(node)) for node in range(first.count)]
    addresses = addresses_of([settings.within_nics(host) for host in hosts])
    of_host = host_variables(hosts, addresses, counts, new_token())
    found = []
    for rank, each in enumerate(placed):
        gpus = dict.fromkeys(gpu for other in each.ranks() for gpu in about[other]["gpus"])
        found.append(
            of_host[each.node]
            | rank_environment(rank, each.local_rank)
            | {
                "PYCOLLECTIVE_HOST": f"{about[rank]['host']}-{about[rank]['node'][:12]}",  # a host is a node of Ray's
                "PYCOLLECTIVE_INIT_TIMEOUT": f"{settings.timeout_s:g}",
                "HOROVOD_HOSTNAME": about[rank]["node"],
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(about)),
                "HOROVOD_LOCAL_RANK": str(each.local_rank),
                "HOROVOD_LOCAL_SIZE": str(each.local_size),
                "HOROVOD_CROSS_RANK": str(each.cross_rank),
                "HOROVOD_CROSS_SIZE": str(each.cross_size),
                # Those of all ranks of the node: device `local_rank` is this one's, and NCCL and CUDA see the others.
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}),
            }
        )
    return found

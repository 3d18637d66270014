"""A job's settings, what one worker asks Ray for, the nodes that have room for it, and the groups that reserve it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pycollective import checks
from pycollective.errors import BootstrapError


@dataclass
class MiniSettings:
    """Settings of a job on Ray.

    Attributes:
        timeout_s: seconds that init() waits for the other ranks.
        placement_group_timeout_s: seconds that Ray has to reserve resources, and again to start the workers.
        nics: names of the network interfaces that may be used between nodes; None: all.
        discovery: of elastic jobs with override_discovery=False: has find_available_hosts_and_slots().
    """

    timeout_s: float = 30
    placement_group_timeout_s: float = 100
    nics: Collection[str] | None = None
    discovery: Any = None

    def within_nics(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """A host's description with these interfaces only.

        Raises:
            BootstrapError: it has none of them.
        """
        have = host["interfaces"]
        kept = {name: each for name, each in have.items() if not self.nics or name in self.nics}
        if not kept:
            raise BootstrapError(
                f"host {host['host']} has none of the network interfaces {', '.join(sorted(self.nics or ()))}; "
                f"it has {', '.join(have) or 'none'}"
            )
        return {**host, "interfaces": kept}


@dataclass(frozen=True)
class Resources:
    """CPUs and GPUs of one worker.

    Raises:
        TypeError, ValueError: not numbers that Ray can reserve, or gpus without use_gpu.
    """

    cpus: float = 1
    use_gpu: bool = False
    gpus: int | None = None

    def __post_init__(self) -> None:
        checks.number(self.cpus, "cpus_per_worker", 0)
        if self.gpus is not None:
            checks.integer(self.gpus, "gpus_per_worker", 0)
        if self.gpus and not self.use_gpu:
            raise ValueError(f"gpus_per_worker={self.gpus} needs use_gpu=True")
        if self.use_gpu and self.gpus == 0:
            raise ValueError("gpus_per_worker must be at least 1 with use_gpu=True")
        if not self.cpus and not self.use_gpu:
            raise ValueError("cpus_per_worker=0 without use_gpu reserves nothing")

    @property
    def gpu_count(self) -> int:
        return (self.gpus or 1) if self.use_gpu else 0

    def bundle(self, workers: int = 1) -> dict[str, float]:
        """A placement group's bundle for so many workers."""
        wanted = {"CPU": self.cpus * workers, "GPU": float(self.gpu_count * workers)}
        return {name: count for name, count in wanted.items() if count}

    def options(self) -> dict[str, Any]:
        return {"num_cpus": self.cpus, "num_gpus": self.gpu_count}

    def slots(self, total: dict[str, float]) -> int:
        return int(min(total.get(name, 0.0) // count for name, count in self.bundle().items()))


class RayHostDiscovery:
    """The nodes of the cluster and how many workers each has room for, whatever else runs there."""

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: int | None = None) -> None:
        self._resources = Resources(cpus_per_worker, use_gpu, gpus_per_worker)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The number of workers for each living node that has room, by Ray's identifier of the node."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        slots = {node["NodeID"]: self._resources.slots(node["Resources"]) for node in alive}
        return {node: count for node, count in slots.items() if count}


@contextlib.contextmanager
def reserve(bundles: list[dict[str, float]], strategy: str, seconds: float) -> Iterator[PlacementGroup]:
    """A new placement group once it has its resources. It is removed if the body raises.

    Args:
        strategy: PACK, or STRICT_SPREAD for one bundle per node.
        seconds: how long to wait, also for an autoscaler.

    Raises:
        TimeoutError: the cluster has not had the resources in time; states what it has.
    """
    group = ray.util.placement_group(bundles, strategy=strategy)
    try:
        if not ray.wait([group.ready()], timeout=seconds)[0]:
            spread = ", each on a node of its own" if strategy == "STRICT_SPREAD" else ""
            raise TimeoutError(
                f"Ray has not had room for {len(bundles)} bundles of {bundles[0]}{spread}, within {seconds:g} s; "
                f"available: {ray.available_resources()}"
            )
        yield group
    except BaseException:
        ray.util.remove_placement_group(group)
        raise


def in_group(group: PlacementGroup, bundle: int) -> dict[str, Any]:
    """Options of an actor in a bundle of a group; -1: in any of its bundles."""
    strategy = PlacementGroupSchedulingStrategy(group, bundle, placement_group_capture_child_tasks=False)
    return {"scheduling_strategy": strategy}

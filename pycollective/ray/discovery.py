"""The nodes of the cluster as hosts of an elastic job."""

from __future__ import annotations

import ray

from pycollective.ray.resources import Resources


class RayHostDiscovery:
    """The nodes of the cluster and how many workers each has room for, whatever else runs there."""

    def __init__(self, use_gpu: bool = False, cpus_per_worker: float = 1, gpus_per_worker: int | None = None) -> None:
        self._resources = Resources(cpus_per_worker, use_gpu, gpus_per_worker)

    def find_available_hosts_and_slots(self) -> dict[str, int]:
        """The number of workers for each living node that has room, by Ray's identifier of the node."""
        alive = [node for node in ray.nodes() if node["Alive"]]
        slots = {node["NodeID"]: self._resources.slots(node["Resources"]) for node in alive}
        return {node: count for node, count in slots.items() if count}

"""A Ray cluster of two nodes on the loopback, for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

CPUS = 2
"""Resources of each node: not those of the machine, which Ray does not check."""
ADDRESSES = ("127.0.0.2", "127.0.0.3")
"""Addresses of the nodes: loopback ones. Ray replaces 127.0.0.1 by an address that other machines can reach."""
NODE = {"num_cpus": CPUS, "object_store_memory": 80 << 20, "include_dashboard": False}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The cluster, to which this process is connected."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={**NODE, "node_ip_address": ADDRESSES[0]})
    try:
        made.add_node(**NODE, node_ip_address=ADDRESSES[1])
        # Ray puts the working directory into the workers' sys.path: the repository's root has the package's sources.
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path_factory.mktemp("ray"))
            ray.init(address=made.address, log_to_driver=False, _node_ip_address=ADDRESSES[0])
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def ray_nodes(cluster: Any, request: pytest.FixtureRequest) -> Any:
    """The cluster, for a test whose module the workers cannot import."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(request.module)
    yield cluster
    cloudpickle.unregister_pickle_by_value(request.module)

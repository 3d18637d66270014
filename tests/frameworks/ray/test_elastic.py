"""Elastic jobs on Ray: a lost worker is replaced, nodes come and go, and training continues from the last commit."""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from typing import Any

import pytest

ray = pytest.importorskip("ray")
from pycollective.ray import ElasticRayExecutor, RayExecutor  # noqa: E402
from pycollective.ray.elastic import RayHostDiscovery  # noqa: E402


def _train(until: int, sizes: list[int], lost: str = "") -> list[tuple[int, int]]:
    """(step, number of ranks) of each step, until there have been so many steps on each of these numbers of ranks, one
    after the other. If `lost` is a path, rank 2 is killed in step 5, once."""
    from pycollective.hvd import basics
    from pycollective.hvd.elastic.running import run
    from pycollective.hvd.elastic.state import ObjectState
    from pycollective.ray import ray_logger

    def completed(done: list[tuple[int, int]]) -> bool:
        counts = [(size, len(list(steps))) for size, steps in itertools.groupby(done, lambda each: each[1])]
        return [size for size, _ in counts] == sizes and counts[-1][1] >= until

    @run
    def steps(state: Any) -> None:
        while not completed(state.done):
            here = len(state.done)
            if lost and here == 5 and basics.rank() == 2 and not os.path.exists(lost):
                with open(lost, "w"):
                    os.kill(os.getpid(), signal.SIGKILL)
            state.done.append((here, basics.size()))
            if basics.rank() == 0:
                ray_logger.log({"step": here, "size": basics.size()})
            state.commit()
            time.sleep(0.02)

    basics.init()
    state = ObjectState(done=[])
    steps(state)
    return state.done  # type: ignore[no-any-return]


def _require_progress(logged: list[dict[str, int]], count: int, losses: int) -> None:
    """Rank 0 has done each step, and again at most the one that a loss has interrupted."""
    steps = [each["step"] for each in logged]
    assert steps == sorted(steps)
    assert set(steps) == set(range(count))
    assert len(steps) <= count + losses


def test_a_killed_worker_is_replaced(ray_nodes: Any, tmp_path: Any) -> None:
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=3, max_workers=3, elastic_timeout=50)
    executor.start()
    seen: list[Any] = []
    found = executor.run(_train, [12, [3]], {"lost": str(tmp_path / "lost")}, callbacks=[seen.append])
    executor.shutdown()
    assert (tmp_path / "lost").exists()
    assert found == [[(step, 3) for step in range(12)]] * 3
    _require_progress(seen, 12, losses=1)
    with pytest.raises(RuntimeError, match="start"):
        executor.run(_train, [1, [3]])


def test_nodes_come_and_go(ray_nodes: Any) -> None:
    seen: list[Any] = []
    added: list[Any] = []
    removed: list[Any] = []

    def change(value: dict[str, int]) -> None:
        seen.append(value)
        steps = sum(each["size"] == value["size"] for each in seen)
        if steps == 3 and value["size"] == 4 and not added:
            added.append(ray_nodes.add_node(num_cpus=1, object_store_memory=80 << 20, node_ip_address="127.0.0.4"))
        if steps == 3 and value["size"] == 5:
            assert sorted(RayHostDiscovery().find_available_hosts_and_slots().values()) == [1, 2, 2]
            removed.append(added[0])
            ray_nodes.remove_node(added[0])

    settings = ElasticRayExecutor.create_settings(min_np=2, elastic_timeout=50)
    executor = ElasticRayExecutor(settings)
    try:
        executor.start()
        found = executor.run(lambda: _train(3, [4, 5, 4]), callbacks=[change])
    finally:
        for node in added[len(removed) :]:
            ray_nodes.remove_node(node)
    assert len(found) == 4
    assert all(each == found[0] for each in found)
    assert [step for step, _ in found[0]] == list(range(len(found[0])))
    _require_progress(seen, len(found[0]), losses=1)


def test_a_function_that_always_fails_ends_the_job(ray_nodes: Any) -> None:
    def failing() -> None:
        import pycollective as pc

        pc.init()
        raise LookupError("always")

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2, elastic_timeout=30)
    executor.start()
    with pytest.raises(RuntimeError, match="worker") as caught:
        executor.run(failing)
    assert isinstance(caught.value.__cause__, LookupError)
    assert re.search(f"rank [01] on host {os.uname().nodename}", str(caught.value.__cause__))
    with pytest.raises(NotImplementedError):
        executor.run_remote(failing)
    with pytest.raises(NotImplementedError):
        executor.execute_single(len)

"""RayExecutor on two nodes: ranks, results, failures, resources."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pycollective.errors import PeerLostError

ray = pytest.importorskip("ray")
from pycollective.ray import RayExecutor  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_nodes")


@contextmanager
def _started(*executable: Any, **arguments: Any) -> Iterator[RayExecutor]:
    executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=30), **arguments)
    executor.start(*executable)
    try:
        yield executor
    finally:
        executor.shutdown()


def _available() -> float:
    return float(ray.available_resources().get("CPU", 0))


def _await_cpus(count: float) -> None:
    end = time.monotonic() + 20
    while _available() != count:  # Ray reports resources with a delay
        assert time.monotonic() < end, ray.available_resources()
        time.sleep(0.1)


def _where(scale: float) -> tuple[Any, ...]:
    import numpy as np

    import pycollective as pc

    comm = pc.init()
    total = comm.allreduce(np.full(3, scale * (comm.rank + 1)))
    given = [int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "LOCAL_RANK", "CROSS_RANK", "CROSS_SIZE")]
    assert given == [comm.rank, comm.local_rank, comm.cross_rank, comm.cross_size]
    return comm.rank, comm.size, comm.local_rank, comm.cross_rank, os.environ["PYCOLLECTIVE_HOST"], total.tolist()


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"num_workers": 3}, None),
        ({"num_hosts": 2, "num_workers_per_host": 2}, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ({"num_hosts": 1, "num_workers_per_host": 2}, [(0, 0), (1, 0)]),
    ],
)
def test_ranks_across_nodes(arguments: dict[str, int], places: Any) -> None:
    with _started(**arguments) as executor:
        found = executor.run(_where, args=[2.0])
        assert executor.run(_where, kwargs={"scale": 2.0}) == found  # init() is called once
    size = len(found)
    assert [(each[0], each[1]) for each in found] == [(rank, size) for rank in range(size)]
    assert all(each[5] == [size * (size + 1.0)] * 3 for each in found)
    nodes = [each[4] for each in found]
    assert nodes == sorted(nodes, key=nodes.index)  # contiguous
    if places:
        assert [each[2:4] for each in found] == places


class _Counter:
    def __init__(self, first: int, step: int) -> None:
        self.value, self.step = first + int(os.environ["RANK"]), step

    def next(self) -> int:
        self.value += self.step
        return self.value


def test_executable_callbacks_and_references() -> None:
    def logging() -> None:
        from pycollective.ray import ray_logger

        for i in range(3):
            ray_logger.log({"rank": os.environ["RANK"], "i": i})

    with _started(_Counter, [10], {"step": 5}, num_workers=2) as executor:
        assert executor.execute(lambda counter: counter.next()) == [15, 16]
        assert executor.execute_single(lambda counter: counter.next()) == 20
        assert ray.get(executor.run_remote(lambda x: x + int(os.environ["RANK"]), [7])) == [7, 8]
        seen: list[Any] = []
        assert executor.run(logging, callbacks=[seen.append]) == [None, None]
        for rank in "01":
            assert [each["i"] for each in seen if each["rank"] == rank] == [0, 1, 2]


def test_the_environment_of_the_caller_and_of_other_launchers() -> None:
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    executor.start(extra_env_vars={"MINE": 3, "PYCOLLECTIVE_TIMEOUT": "9"})
    try:
        found = executor.execute(lambda _: dict(os.environ))
    finally:
        executor.shutdown()
    assert {each["MINE"] for each in found} == {"3"}
    assert {each["PYCOLLECTIVE_TIMEOUT"] for each in found} == {"9"}
    assert len({each["PYCOLLECTIVE_TOKEN"] for each in found}) == 1


def _fail_on_rank_1(meanwhile: str) -> int:
    import pycollective as pc

    comm = pc.init()
    comm.barrier()
    if comm.rank == 1:
        if meanwhile == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyError("what rank 1 raised")
    if meanwhile != "return":
        comm.barrier()
        comm.barrier()
    return comm.rank


def test_an_exception_names_rank_and_host_and_ends_who_waits() -> None:
    with _started(num_hosts=2) as executor:
        for meanwhile in ("return", "wait"):
            with pytest.raises(KeyError, match="what rank 1 raised") as caught:
                executor.run(_fail_on_rank_1, [meanwhile])
            assert f"rank 1 on host {os.uname().nodename}" in str(caught.value)
        with pytest.raises(RuntimeError, match=r"no workers, because a call has failed: KeyError.*what rank 1 raised"):
            executor.run(_where, [1.0])
        executor.shutdown()
        executor.start()
        assert len(executor.run(_where, [1.0])) == 2


def test_a_killed_worker_does_not_hang_the_others() -> None:
    with _started(num_workers=2) as executor:
        with pytest.raises(PeerLostError, match=f"rank 1 on host {os.uname().nodename}") as caught:
            executor.run(_fail_on_rank_1, ["die"])
        assert caught.value.rank == 1
        with pytest.raises(RuntimeError, match="no workers"):
            executor.execute_single(len)


def test_resources_are_reserved_and_released() -> None:
    _await_cpus(4)
    with _started(num_workers=1, cpus_per_worker=2) as executor:
        _await_cpus(2)
        with pytest.raises(RuntimeError, match="run already"):
            executor.start()
    _await_cpus(4)
    executor.shutdown()  # twice
    for arguments in ({"num_workers": 5}, {"num_hosts": 1, "num_workers_per_host": 3}, {"num_hosts": 3}):
        executor = RayExecutor(RayExecutor.create_settings(placement_group_timeout_s=0.5), **arguments)
        with pytest.raises(TimeoutError, match="has not had room for"):
            executor.start()
    _await_cpus(4)


def test_a_failing_executable_releases_everything() -> None:
    def failing() -> None:
        raise OSError("no data")

    with pytest.raises(OSError, match="no data"), _started(failing, num_workers=2):
        pass
    _await_cpus(4)


def test_inside_a_placement_group() -> None:
    @ray.remote(num_cpus=0)
    class Caller:
        def run(self, inherit: bool) -> tuple[list[Any], int]:
            settings = RayExecutor.create_settings(placement_group_timeout_s=60 if inherit else 2)
            executor = RayExecutor(settings, num_workers=2, use_current_placement_group=inherit)
            executor.start()
            try:
                return executor.run(_where, [1.0]), len(ray.util.placement_group_table())
            finally:
                executor.shutdown()

    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([{"CPU": 2}, {"CPU": 2}])
    ray.get(group.ready())
    try:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        caller = Caller.options(scheduling_strategy=strategy).remote()
        found, _ = ray.get(caller.run.remote(True))
        assert [each[0] for each in found] == [0, 1]
        with pytest.raises(TimeoutError):  # the group has all CPUs
            ray.get(caller.run.remote(False))
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
    finally:
        ray.util.remove_placement_group(group)
    _await_cpus(4)

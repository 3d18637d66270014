"""What RayExecutor refuses, and what it computes before anything is started."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

DESCRIPTION = {
    "interfaces": {"lo": ["127.0.0.1/8"]},
    "loopback": "127.0.0.1",
    "stack": "s",
    "ports": [5, 6],
    "version": "1",
    "byteorder": "little",
}


def test_without_ray_the_error_names_the_extra() -> None:
    script = "import sys; sys.modules['ray'] = None; import pycollective.ray"
    ran = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: pycollective.ray needs Ray: pip install ray" in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "exactly one of num_workers, num_hosts, min_workers is needed, not none"),
        ({"num_workers": 2, "num_hosts": 1}, "not num_workers and num_hosts"),
        ({"num_workers": 2, "min_workers": 1}, "not num_workers and min_workers"),
        ({"max_workers": 2, "num_workers": 1}, "max_workers needs min_workers"),
        ({"num_workers": 0}, "num_workers must be an integer"),
        ({"num_hosts": 2, "num_workers_per_host": 0}, "num_workers_per_host must be"),
        ({"num_workers": 1, "gpus_per_worker": 1}, "gpus_per_worker=1 needs use_gpu=True"),
        ({"num_workers": 1, "use_gpu": True, "gpus_per_worker": 0}, "at least 1"),
        ({"num_workers": 1, "cpus_per_worker": 0}, "reserves nothing"),
        ({"min_workers": 3, "max_workers": 2}, "max_workers must be"),
        ({"min_workers": 1, "override_discovery": False}, "needs settings.discovery"),
    ],
)
def test_contradictory_arguments_are_refused(arguments: dict[str, Any], expected: str) -> None:
    pytest.importorskip("ray")
    from pycollective.ray import RayExecutor

    with pytest.raises(ValueError, match=expected):
        RayExecutor(RayExecutor.create_settings(), **arguments)


def test_ranks_of_a_node_are_adjacent() -> None:
    pytest.importorskip("ray")
    from pycollective.ray.static_job import by_node

    assert by_node(["b", "a", "b", "c", "a"]) == [0, 2, 1, 4, 3]


def test_variables_of_unequal_nodes() -> None:
    pytest.importorskip("ray")
    from pycollective.ray import RayExecutor
    from pycollective.ray.static_job import environments

    about = [{**DESCRIPTION, "host": "h", "node": node, "gpus": [gpu]} for node, gpu in ("a3", "a1", "a0", "b0")]
    found = environments(about, RayExecutor.create_settings(timeout_s=7))
    assert len({each["PYCOLLECTIVE_RENDEZVOUS"] for each in found}) == 1
    assert len({each["PYCOLLECTIVE_TOKEN"] for each in found}) == 1
    names = ["RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    assert [[int(each[f"HOROVOD_{name}"]) for name in names] for each in found] == [
        [0, 0, 3, 0, 2],
        [1, 1, 3, 0, 1],
        [2, 2, 3, 0, 1],
        [3, 0, 1, 1, 2],
    ]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["3,1,0", "3,1,0", "3,1,0", "0"]
    assert {each["PYCOLLECTIVE_INIT_TIMEOUT"] for each in found} == {"7"}
    with pytest.raises(RuntimeError, match="host h has none of the network interfaces eth7; it has lo"):
        environments(about, RayExecutor.create_settings(nics={"eth7"}))


def test_slots_of_nodes() -> None:
    pytest.importorskip("ray")
    from pycollective.ray.resources import Resources

    node = {"CPU": 9.0, "GPU": 4.0}
    assert [Resources(2).slots(node), Resources(2, True).slots(node), Resources(1, True, 3).slots(node)] == [4, 4, 1]
    assert Resources(1, True).slots({"CPU": 9.0}) == 0

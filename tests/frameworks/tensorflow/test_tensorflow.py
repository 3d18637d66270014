"""hvd.* on TensorFlow, calls from its graphs, by our operation and by numpy_function, and how jobs end.

Several tests read what one start of the ranks has found.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from launch import Launched, launch, needs

needs("tensorflow")

pytestmark = pytest.mark.timeout(300)
STARTS: dict[str, tuple[int, list[str]]] = {
    "three": (3, ["graph_calls", "collectives", "elastic"]),
    "two": (2, ["collectives", "killed"]),
    "left": (2, ["left"]),
    "fallback": (2, ["graph_calls", "left"]),
}
"""Number of ranks, and parts of run_steps.py; what ends ranks comes last."""


@functools.cache
def start(name: str) -> tuple[Launched | str, list[dict[str, Any]]]:
    """What was launched, or why it failed; and what each rank has found in each part."""
    ranks, parts = STARTS[name]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3"} | ({"PYCOLLECTIVE_TENSORFLOW_OP": "0"} if name == "fallback" else {})
    try:
        script = Path(__file__).with_name("run_steps.py")
        done = launch(ranks, script, ranks, *parts, timeout=240, grace=30, env=env, loaded=["tensorflow"])
    except AssertionError as error:  # too slow: remembered, not repeated for each test
        return str(error), [{}] * ranks
    lines = ([line for line in output.splitlines() if line.startswith("[")] for output in done)
    return done, [dict(map(json.loads, own)) for own in lines]


def report(name: str) -> str:
    done = start(name)[0]
    return done if isinstance(done, str) else done.report()


def check(name: str, part: str, least: int) -> None:
    """All checks of a part have succeeded on every rank."""
    for rank, found in enumerate(start(name)[1]):
        assert part in found, report(name)
        failed = "\n".join(f"--- {step}\n{trace}" for step, trace in found[part].items() if trace)
        assert not failed, f"rank {rank}\n{failed}"
        assert len(found[part]) > least


@pytest.mark.parametrize("name", ["two", "three"])
def test_collectives(name: str) -> None:
    """Eager, tf.function and v1 graphs agree in bits with NumPy; errors; tapes; optimizers; state."""
    check(name, "collectives", 15)


@pytest.mark.parametrize("name", ["three", "fallback"])
def test_calls(name: str) -> None:
    check(name, "graph_calls", 13)


def test_a_killed_rank_ends_the_job() -> None:
    """In a loop of a tf.function, while operations of other graphs are pending: errors name it, and the others end."""
    found = start("two")[1][0].get("killed")
    assert found, report("two")
    kind, _, message = found["loop"]
    assert kind == "UnknownError" and "rank 1" in message and float(found["seconds"][0]) < 15, found
    for way in ("function", "compiled", "session"):
        assert found[way][1].startswith("rank 1 is gone"), found


def test_elastic_training_continues() -> None:
    for rank in (0, 2):
        assert start("three")[1][rank].get("elastic") == "ranks 2 step 6 value 6.0", report("three")


@pytest.mark.parametrize("name", ["left", "fallback"])
def test_python_ends_while_operations_are_pending(name: str) -> None:
    done, found = start(name)
    assert isinstance(done, Launched) and done.returncode == 0, report(name)
    assert [each.get("left") for each in found] == ["left"] * 2, report(name)

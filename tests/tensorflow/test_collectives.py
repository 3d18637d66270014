"""hvd.* on TensorFlow: eager, tf.function and v1 graphs agree in bits with NumPy; errors; tapes; optimizers; state."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from launch import launch

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("needs TensorFlow", allow_module_level=True)
HERE = Path(__file__).parent
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.mark.timeout(200)  # every rank imports TensorFlow: 5 s of a core that is idle
@pytest.mark.parametrize("ranks", [2, 3])
def test_collectives(ranks: int) -> None:
    outputs = launch(ranks, HERE / "collective_steps.py", env=QUIET, timeout=150, check=True)
    for rank, output in enumerate(outputs):
        found = json.loads(output.splitlines()[-1])
        failed = "\n".join(f"--- {name}\n{trace}" for name, trace in found.items() if trace)
        assert not failed, f"rank {rank}\n{failed}"
        assert len(found) > 15


def test_a_killed_rank_ends_the_job() -> None:
    """In a loop of a tf.function: the others raise an error that names it, and their processes end."""
    job = launch(2, HERE / "killed_steps.py", env=QUIET, timeout=60, grace=20)
    kind, seconds, message = job[0].splitlines()[-1].split(" ", 2)
    assert kind == "UnknownError" and "rank 1" in message and float(seconds) < 10, job.report()


def test_elastic_training_continues() -> None:
    """The step of a tf.function that lost a rank is repeated from the last commit by the ranks that remain."""
    job = launch(3, HERE / "killed_steps.py", "elastic", env=QUIET, timeout=60, grace=20)
    for rank in (0, 2):
        assert job[rank].splitlines()[-1] == "ranks 2 step 6 value 6.0", job.report()

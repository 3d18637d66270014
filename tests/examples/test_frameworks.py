"""The examples with JAX, Keras and TensorFlow as a reader would run them: they learn, and nothing changes the bits."""

from __future__ import annotations

import functools
import re

import pytest

from labs import EXAMPLES, needs_mpi, trained
from launch import find_mpirun, launch, needs

needs("sklearn")


@functools.cache
def jax_digits(n: int, launcher: str, *args: str, **env: str) -> tuple[float, str]:
    return trained(launch(n, EXAMPLES / "jax_digits.py", *args, launcher=launcher, env=env, timeout=120))


def test_jax_learns() -> None:
    needs("jax", "optax")
    assert jax_digits(4, "pycollective")[0] >= 0.96


@pytest.mark.parametrize("launcher", ["pycollective", pytest.param("mpirun", marks=needs_mpi)])
def test_neither_the_launcher_nor_fusion_changes_the_bits_of_jax(launcher: str) -> None:
    needs("jax", "optax")
    fused = jax_digits(3, launcher, "--epochs", "2")
    assert fused == jax_digits(3, "pycollective", "--epochs", "2", HOROVOD_FUSION_THRESHOLD="0")


def test_keras_3() -> None:
    """The example fails itself if weights differ."""
    needs("keras", "jax")
    ran = launch(2, EXAMPLES / "keras_digits.py", env={"KERAS_BACKEND": "jax"}, timeout=110, check=True)
    found = re.fullmatch(r"2 ranks, jax: accuracy (\d\.\d{3}), weights [0-9a-f]{16}", ran[0].splitlines()[-1])
    assert found and float(found[1]) > 0.93, ran.report()


def test_a_script_of_keras_for_horovod() -> None:
    needs("keras", "tensorflow")
    env, script = {"TF_CPP_MIN_LOG_LEVEL": "3"}, EXAMPLES / "horovod_keras.py"
    options = {"through": "pycollective.horovod", "loaded": ["tensorflow", "sklearn.datasets"]}
    ran = launch(2, script, "--epochs", "4", env=env, timeout=110, check=True, **options)
    found = re.fullmatch(r"2 ranks: accuracy (\d\.\d{3})", ran[0].splitlines()[-1])
    assert found and float(found[1]) > 0.85, ran.report()


@pytest.mark.mpi
@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_tensorflow_learns_and_the_launcher_does_not_change_bits() -> None:
    needs("tensorflow")
    options = {"loaded": ["tensorflow", "sklearn.datasets"], "timeout": 120}
    script, words = EXAMPLES / "tensorflow_digits.py", ["--epochs", "10"]
    (accuracy, digest), other = (
        trained(launch(4, script, *words, launcher=launcher, **options)) for launcher in ("pycollective", "mpirun")
    )
    assert accuracy >= 0.95
    assert digest == other[1]

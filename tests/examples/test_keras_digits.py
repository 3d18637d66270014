"""The Keras examples as a reader would run them: they learn, with equal weights on all ranks."""

from __future__ import annotations

import re
from pathlib import Path

from launch import launch, needs

needs("keras", "sklearn")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_keras_3() -> None:
    """The example fails itself if weights differ."""
    needs("jax")
    ran = launch(2, EXAMPLES / "keras_digits.py", env={"KERAS_BACKEND": "jax"}, timeout=110, check=True)
    found = re.fullmatch(r"2 ranks, jax: accuracy (\d\.\d{3}), weights [0-9a-f]{16}", ran[0].splitlines()[-1])
    assert found and float(found[1]) > 0.93, ran.report()


def test_a_script_for_horovod() -> None:
    needs("tensorflow")
    env, script = {"TF_CPP_MIN_LOG_LEVEL": "3"}, EXAMPLES / "horovod_keras.py"
    options = {"through": "pycollective.horovod", "loaded": ["tensorflow", "sklearn.datasets"]}
    ran = launch(2, script, "--epochs", "4", env=env, timeout=110, check=True, **options)
    found = re.fullmatch(r"2 ranks: accuracy (\d\.\d{3})", ran[0].splitlines()[-1])
    assert found and float(found[1]) > 0.85, ran.report()

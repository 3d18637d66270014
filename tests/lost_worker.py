"""An elastic job under horovodrun that loses a worker while it trains a linear model, whatever the framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

STEPS, ROWS, RATE, MOMENTUM = 9, 6, 0.05, 0.9
PRELUDE = f"""
import json, os, signal
import numpy as np
STEPS, RATE, MOMENTUM = {STEPS}, {RATE}, {MOMENTUM}

def batch(step, rank, size):
    rng = np.random.default_rng(step)
    x = rng.standard_normal(({ROWS}, 4)).astype("f4")
    if step == 5 and os.environ["PYCOLLECTIVE_ELASTIC_WORKER"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return x[rank::size], (x @ np.arange(1, 5, dtype="f4")[:, None])[rank::size]

def report(weights, steps):
    print(json.dumps([np.asarray(weights).ravel().tolist(), steps]), flush=True)
"""


def check(script: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a script on two ranks, whose worker 1 dies at step 5 in `batch`; rank 0 calls `report` in the end.

    The weights are those of SGD with momentum from zero, over whole batches: nothing was lost or done twice.
    """
    (folder / "train.py").write_text(PRELUDE + script)
    words = [sys.executable, "-m", "pycollective.horovod", "-np", "2", "--min-np", "2", "train.py"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **(env or {})}
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "worker 1 (rank 1, host localhost) ended with code 137" in done.stderr
    assert "generation 2: 2 workers on localhost:2" in done.stderr
    weights, steps = json.loads(done.stdout.splitlines()[-1])
    assert steps == STEPS
    np.testing.assert_allclose(weights, _expected(), rtol=1e-4)


def _expected() -> np.ndarray:
    weights = velocity = np.zeros(4)
    for step in range(STEPS):
        x = np.random.default_rng(step).standard_normal((ROWS, 4))
        velocity = MOMENTUM * velocity - RATE * 2 / ROWS * x.T @ (x @ weights - x @ np.arange(1, 5))
        weights = weights + velocity
    return weights

"""Training with Keras 3 on each backend, and with tf_keras: many checks in one start of the ranks."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

from launch import launch, needs

needs("keras")
pytestmark = pytest.mark.timeout(300)
CHECKS = Path(__file__).with_name("run_checks.py")
ALL = [
    "fit", "fusion", "whole_batch", "accumulation", "clipping", "averages_and_ema", "operators",
    "mixed_precision", "sets_and_local_layers", "sparse", "saving", "saving_passes", "state_is_kept",
    "metrics_and_rates", "momentum_is_corrected", "elastic", "values", "gradients_differ", "bypassed",
    "invalid_arguments", "frozen_in_fit", "batches_run_out", "rank_is_killed",
]  # fmt: skip
KERAS_3 = ["own_accumulation", "steps_differ"]
KINDS = {
    "tensorflow": [*KERAS_3, "computed", "sync_batch_normalization", *ALL],
    "jax": [*KERAS_3, *ALL],
    "torch": [*KERAS_3, *ALL],
    "tf_keras": ["computed", "sync_batch_normalization", *ALL],
}


@functools.cache
def outcomes(kind: str) -> dict[str, list[str]]:
    """Check -> each rank's outcome."""
    needs(*(("tensorflow", "tf_keras") if kind == "tf_keras" else (kind,)))
    chosen = {"TF_USE_LEGACY_KERAS": "1"} if kind == "tf_keras" else {"KERAS_BACKEND": kind}
    env = {**chosen, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_ENABLE_X64": "1", "PYCOLLECTIVE_TIMEOUT": "8"}
    found: dict[str, list[str]] = {name: [] for name in KINDS[kind]}
    try:
        loaded = {"tf_keras": ["tensorflow", "tf_keras"], "jax": []}.get(kind, [kind])  # JAX reads `env` at its import
        ranks = launch(2, CHECKS, *KINDS[kind], timeout=240, env=env, grace=60, loaded=loaded)
    except AssertionError as error:  # too slow: remembered, not repeated for each check
        return {name: [str(error)] for name in found}
    for output in ranks:
        for line in output.splitlines():
            if line.startswith("["):
                name, outcome = json.loads(line)
                found[name].append(outcome)
    for name, each in found.items():
        remaining = 1 if name == "rank_is_killed" else 2
        each += [f"did not end\n{ranks.stderr[-4000:]}"] * (remaining - len(each))
    return found


@pytest.mark.parametrize(("kind", "check"), [(kind, check) for kind, checks in KINDS.items() for check in checks])
def test_check(kind: str, check: str) -> None:
    for rank, outcome in enumerate(outcomes(kind)[check]):
        assert outcome == "ok", f"rank {rank}\n{outcome}"

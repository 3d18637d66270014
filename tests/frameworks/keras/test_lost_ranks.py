"""Ranks that are killed in `fit`, and in an elastic job under horovodrun, which replaces the worker."""

from __future__ import annotations

from pathlib import Path

import lost_worker
import pytest

from launch import launch, needs

SCRIPT = """
import keras
import horovod.keras as hvd

hvd.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=MOMENTUM)), "mse")

@hvd.elastic.run
def train(state):
    while state.step < STEPS:
        model.train_on_batch(*batch(state.step, hvd.rank(), hvd.size()))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

state = hvd.elastic.KerasState(model, step=0)
train(state)
if hvd.rank() == 0:
    report(model.get_weights()[0], state.step)
"""


@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_lost_worker_is_replaced(backend: str, tmp_path: Path) -> None:
    needs("keras", backend)
    lost_worker.check(SCRIPT, tmp_path, {"KERAS_BACKEND": backend})


KILLED_IN_FIT = """
import os, signal
import keras, numpy as np
import pycollective.keras as hvd

hvd.init()


class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
if hvd.rank() == 0:
    print("trains", flush=True)
model.fit(np.ones((80, 4)), np.ones((80, 1)), batch_size=8, verbose=0, callbacks=[Killed()])
print("has not noticed")
"""


def test_a_rank_killed_in_fit() -> None:
    """On JAX, which runs most asynchronously; in test_training a rank is killed on every backend."""
    needs("keras", "jax")
    env = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = launch(2, KILLED_IN_FIT, env=env, timeout=100, grace=30)
    assert ended[0] == "trains\n", ended.report()
    assert "HorovodInternalError" in ended.stderr and "rank 1" in ended.stderr, ended.report()
    assert "stopping" not in ended.stderr.partition("HorovodInternalError")[2], ended.report()

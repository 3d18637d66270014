"""A worker of an elastic job under horovodrun is killed and replaced: the weights are right in the end."""

from __future__ import annotations

from pathlib import Path

import lost_worker
import pytest

from launch import needs

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

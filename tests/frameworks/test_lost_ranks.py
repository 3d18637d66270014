"""Ranks that are killed: in an elastic job under horovodrun, which replaces the worker, and in `fit` of Keras."""

from __future__ import annotations

from pathlib import Path

import lost_worker
import pytest

from launch import launch, needs

TENSORFLOW = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
weights = tf.Variable(tf.zeros((4, 1)))
velocity = tf.Variable(tf.zeros((4, 1)))

@tf.function
def descend(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((x @ weights - y) ** 2)
    [gradient] = hvd.DistributedGradientTape(tape).gradient(loss, [weights])
    velocity.assign(MOMENTUM * velocity - RATE * gradient)
    weights.assign_add(velocity)

def step(*rows):
    descend(*map(tf.constant, rows))

state = hvd.elastic.TensorFlowState([weights, velocity], step=0)
found = lambda: weights
"""
KERAS = """
import keras
import horovod.keras as hvd

hvd.init()
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(RATE, momentum=MOMENTUM)), "mse")
step = model.train_on_batch
state = hvd.elastic.KerasState(model, step=0)
found = lambda: model.get_weights()[0]
"""
TRAIN = """
@hvd.elastic.run
def train(state):
    while state.step < STEPS:
        step(*batch(state.step, hvd.rank(), hvd.size()))
        state.step += 1
        if state.step % 2 == 0:
            state.commit()

train(state)
if hvd.rank() == 0:
    report(found(), state.step)
"""


@pytest.mark.parametrize(
    ("modules", "script"), [(["tensorflow"], TENSORFLOW), (["tensorflow", "keras"], KERAS), (["jax", "keras"], KERAS)]
)
def test_a_lost_worker_is_replaced(modules: list[str], script: str, tmp_path: Path) -> None:
    """The weights are right in the end."""
    needs(*modules)
    lost_worker.check(script + TRAIN, tmp_path, {"KERAS_BACKEND": modules[0]})


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
    """On JAX, which runs most asynchronously; keras/test_training.py kills a rank on every backend."""
    needs("keras", "jax")
    env = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = launch(2, KILLED_IN_FIT, env=env, timeout=100, grace=30)
    assert ended[0] == "trains\n", ended.report()
    assert "HorovodInternalError" in ended.stderr and "rank 1" in ended.stderr, ended.report()
    assert "stopping" not in ended.stderr.partition("HorovodInternalError")[2], ended.report()

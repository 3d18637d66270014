"""A rank is killed inside `fit`: the others raise an error that names it, and end."""

from __future__ import annotations

from launch import launch, needs

needs("keras", "jax")

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


def test_a_killed_rank() -> None:
    """On JAX, which runs most asynchronously; test_training kills a rank on every backend, in an elastic training."""
    env = {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = launch(2, KILLED_IN_FIT, env=env, timeout=100, grace=30)
    assert ended[0] == "trains\n", ended.report()
    assert "HorovodInternalError" in ended.stderr and "rank 1" in ended.stderr, ended.report()
    assert "stopping" not in ended.stderr.partition("HorovodInternalError")[2], ended.report()

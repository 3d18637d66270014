"""What must not continue silently."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from common import BACKEND, LEGACY, digest, errors, hvd, keras, network, raises, rows, step, tensor, variable


def gradients_differ() -> None:
    """A frozen layer, another variable, another shape on one rank: an error on all that names it."""
    odd = hvd.rank() == 1
    if not LEGACY:
        opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
        with raises(errors.MismatchError, "'v1'", "missing on rank 1"):
            step(opt, 1.0, None if odd else 1.0)
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with raises(errors.MismatchError, "'v2'", "rank 1"):
        step(opt, *[1.0] * (3 if odd else 2))
    opt, v = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), variable((3 if odd else 2,), "w")
    with raises(errors.MismatchError, "'w'", "shape (3,)"):
        opt.apply_gradients([(tensor(np.ones(3 if odd else 2)), v)])


def frozen_in_fit() -> None:
    """Refusal in a compiled step."""
    model = network()
    model.layers[0].trainable = hvd.rank() == 0
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = rows()
    with raises(Exception, "dense/kernel", "rank 1"):
        model.fit(x, y, verbose=0)
    forget_failure()


def forget_failure() -> None:
    """A failed collective also fails what JAX orders after it, up to the end of the process."""
    if BACKEND == "jax":
        importlib.import_module("pycollective.jax.private").forget_failure()


def bypassed() -> None:
    """Training steps that do not reduce."""
    opt = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    if not LEGACY:
        opt.build([v := variable((2,))])
        with raises(RuntimeError, "apply()"):
            opt.update_step(tensor([1.0, 1.0]), v, 1.0)

    class Bypassing(keras.Model):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, *data: Any) -> Any:
            if BACKEND == "jax":
                return {"loss": 0.0}, data[0]
            self(data[0][0])
            return {"loss": 0.0}

    x, y = rows()
    for callbacks in ([hvd.callbacks.BroadcastGlobalVariablesCallback(0)], []):
        model = Bypassing()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse", run_eagerly=True)
        with raises(RuntimeError, "no gradient was reduced"):
            model.fit(x, y, verbose=0, callbacks=callbacks)


def invalid_arguments() -> None:
    sgd = keras.optimizers.SGD(1.0)
    with raises(ValueError, "backward_passes_per_step"):
        hvd.DistributedOptimizer(sgd, backward_passes_per_step=0)
    with raises(ValueError, "gradient_predivide_factor"):
        hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
    with raises(ValueError, "op must be"):
        hvd.DistributedOptimizer(sgd, op=99)
    with raises(TypeError, "optimizer"):
        hvd.DistributedOptimizer("adam")
    hvd.shutdown()
    opt = hvd.DistributedOptimizer(sgd)
    with raises(ValueError, "hvd.init()"):
        step(opt, 1.0)
    hvd.init()


def steps_differ() -> None:
    """Unequal numbers of batches: with the broadcast callback the training does not begin."""
    model = network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = rows(48 if hvd.rank() else 32)
    with raises(errors.MismatchError, "steps", "[4, 6"):
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[hvd.BroadcastGlobalVariablesCallback(0)])


def batches_run_out() -> None:
    """Without the callback: an error when a rank has left, in whatever step, instead of waiting for it."""
    for batches in (1, 2, 4, 5):
        model = network()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        x, y = rows(48 if hvd.rank() else 8 * batches)
        if hvd.rank() == 0:
            model.fit(x, y, batch_size=8, verbose=0)
        else:
            with raises(Exception, "rank 0"):
                model.fit(x, y, batch_size=8, verbose=0)
                digest(model)  # JAX does not wait for the weights of the last step before they are used
            forget_failure()
        hvd.shutdown()
        hvd.init()

"""Training by `fit`: weights are bit-equal on all ranks, and what they should be."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import unittest.mock
from collections.abc import Iterator
from typing import Any

import numpy as np
from common import BACKEND, LEGACY, digest, hvd, keras, network, read, rows, same_everywhere, train


def fit() -> None:
    """Bit-equal weights for several optimizers and options."""
    for eagerly in (False, True):
        train(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), run_eagerly=eagerly)
    train(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9), compression=hvd.Compression.fp16))
    train(hvd.DistributedOptimizer(keras.optimizers.RMSprop(0.01), gradient_predivide_factor=2.0, groups=2))


@contextlib.contextmanager
def _without_generated_code() -> Iterator[None]:
    """torch.compile traces, breaks graphs and differentiates as ever, but does not compile C++ for a minute."""
    if BACKEND != "torch":
        yield
        return
    torch = importlib.import_module("torch")
    with unittest.mock.patch.object(torch, "compile", functools.partial(torch.compile, backend="aot_eager")):
        yield


def _jit_modes() -> list[bool]:
    """The values of jit_compile under which training works."""
    if LEGACY or (BACKEND == "tensorflow" and importlib.import_module("pycollective.tensorflow.graph_calls").why_not()):
        return [False]
    return [False, True]


def fusion() -> None:
    """Equal bits whatever is fused, with jit_compile and without."""
    keras.utils.set_random_seed(1)
    x, y = rows(seed=hvd.rank())
    for jit in _jit_modes():
        found, start = set(), []
        for threshold in ("default", "0", "100"):
            _restart(threshold)
            if not start or BACKEND == "jax":  # elsewhere the compiled step is used again, as compiling takes seconds
                model = network()
                model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=jit)
                model.optimizer.build(model.trainable_variables)
                variables = [*model.variables, *model.optimizer.variables]
                start = start or [np.array(read(variable)) for variable in variables]
            for variable, value in zip(variables, start, strict=True):
                variable.assign(value)
            with _without_generated_code():
                model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
            same_everywhere(digest(model))
            found.add(digest(model))
        assert len(found) == 1, (jit, found)
    _restart("default")


def _restart(threshold: str) -> None:
    """The engine with another fusion threshold."""
    hvd.shutdown()
    os.environ["HOROVOD_FUSION_THRESHOLD"] = threshold
    if threshold == "default":
        del os.environ["HOROVOD_FUSION_THRESHOLD"]
    hvd.init()


def whole_batch() -> None:
    """In float64: what one process computes with the whole batch, with jit_compile and without."""
    keras.backend.set_floatx("float64")
    try:
        n, part, steps = hvd.size(), 4, 6
        x, y = rows(n * part * steps, dtype="float64")
        keras.utils.set_random_seed(1)
        mine = [a.reshape(steps, n, part, -1)[:, hvd.rank()].reshape(steps * part, -1) for a in (x, y)]
        layers = [[keras.Input((6,), dtype="float64"), _affine(8), _affine(2)] for _ in range(2)]
        alone, here = map(keras.Sequential, layers)
        first = alone.get_weights()
        for jit in _jit_modes():  # Keras rounds elsewhere with it on JAX
            alone.set_weights(first)
            here.set_weights(first)
            alone.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=jit)
            here.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", jit_compile=jit)
            with _without_generated_code():
                alone.fit(x, y, batch_size=n * part, shuffle=False, epochs=2, verbose=0)
                here.fit(*mine, batch_size=part, shuffle=False, epochs=2, verbose=0)
            for a, b in zip(alone.get_weights(), here.get_weights(), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
    finally:
        keras.backend.set_floatx("float32")


def _affine(units: int) -> Any:
    """A dense layer in float64 throughout: Keras multiplies matrices in float32 on torch, whatever their type."""
    if BACKEND != "torch":
        return keras.layers.Dense(units, activation="tanh", dtype="float64")

    class Affine(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight((shape[-1], units), name="kernel")

        def call(self, x: Any) -> Any:
            return keras.ops.tanh(keras.ops.sum(keras.ops.expand_dims(x, -1) * self.kernel, axis=1))

    return Affine(dtype="float64")


def sparse() -> None:
    """Embeddings' gradients, gathered or dense."""
    for dense in (False, True):
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.Input((4,), dtype="int32"), keras.layers.Embedding(20, 3)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), sparse_as_dense=dense), "mse")
        x = np.random.default_rng(hvd.rank()).integers(20, size=(16, 4))
        first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(x, np.zeros((16, 4, 3)), batch_size=4, verbose=0, callbacks=[first])
        same_everywhere(digest(model))


def averages_and_ema() -> None:
    sgd = keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    train(hvd.DistributedOptimizer(sgd), **({} if BACKEND == "torch" else {"steps_per_execution": 2}))

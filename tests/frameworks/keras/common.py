"""What the checks of this folder share: the package under test, a model, data that differ between ranks, a training."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

LEGACY = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
hvd: Any = importlib.import_module("pycollective.tensorflow.keras" if LEGACY else "pycollective.keras")
keras: Any = importlib.import_module("tf_keras" if LEGACY else "keras")
errors: Any = importlib.import_module("pycollective.errors")
BACKEND = "tensorflow" if LEGACY else keras.backend.backend()


def network(units: int = 8, dtype: str = "float32", **options: Any) -> Any:
    layers = [keras.layers.Dense(units, activation="tanh", dtype=dtype, **options), keras.layers.Dense(2, dtype=dtype)]
    return keras.Sequential([keras.Input((6,), dtype=dtype), *layers])


def rows(count: int = 48, seed: int = 0, dtype: str = "float32") -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 6)).astype(dtype), rng.normal(size=(count, 2)).astype(dtype)


def digest(model: Any) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())).hexdigest()[:16]


def same_everywhere(value: Any) -> None:
    everyone = hvd.allgather_object(value)
    assert everyone == [everyone[0]] * hvd.size(), everyone


def train(optimizer: Any, model: Any = None, epochs: int = 2, callbacks: Any = (), **options: Any) -> Any:
    """fit on data that differ between ranks, from weights that differ until rank 0's are broadcast."""
    keras.utils.set_random_seed(hvd.rank())
    model = network() if model is None else model
    model.compile(optimizer, "mse", **options)
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    x, y = rows(seed=hvd.rank())
    model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[first, *callbacks])
    same_everywhere(digest(model))
    return model


def variable(shape: Any = (), name: str = "v") -> Any:
    kind = importlib.import_module("tensorflow").Variable if LEGACY else keras.Variable
    return kind(np.zeros(shape, "float32"), name=name)


def tensor(value: Any) -> Any:
    convert = importlib.import_module("tensorflow").constant if LEGACY else keras.ops.convert_to_tensor
    return convert(np.asarray(value, "float32"))


def step(optimizer: Any, *values: Any) -> list[float]:
    """What one step with these gradients (None, or a number for each rank) makes of variables that were 0."""
    variables = [variable((2,), f"v{i}") for i in range(len(values))]
    gradients = [None if v is None else tensor(np.full(2, v)) for v in values]
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
    return [float(read(v)[0]) for v in variables]


def read(value: Any) -> Any:
    """As a NumPy array."""
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


@contextlib.contextmanager
def raises(kind: Any, *words: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"did not raise {kind}")

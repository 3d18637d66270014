"""A network with one hidden layer in NumPy, for labs whose ranks are threads, and how ranks train it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Params = dict[str, Any]


def parameters(inputs: int, hidden: int, classes: int, seed: int) -> Params:
    """Weights for ReLU (He et al. 2015), and biases of zero; float32."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=(inputs, hidden)) * np.sqrt(2 / inputs)
    second = rng.normal(size=(hidden, classes)) * np.sqrt(1 / hidden)
    return {
        "w1": first.astype(np.float32),
        "b1": np.zeros(hidden, np.float32),
        "w2": second.astype(np.float32),
        "b2": np.zeros(classes, np.float32),
    }


def scores(params: Params, x: Any) -> tuple[Any, Any]:
    """The hidden layer and the output, for rows x."""
    hidden = np.maximum(x @ params["w1"] + params["b1"], 0)
    return hidden, hidden @ params["w2"] + params["b2"]


def gradients(params: Params, x: Any, y: Any) -> Params:
    """Gradients of the mean cross-entropy over rows x with labels y."""
    hidden, output = scores(params, x)
    error = np.exp(output - output.max(1, keepdims=True))
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(y)), y] -= 1
    error /= len(y)
    back = (error @ params["w2"].T) * (hidden > 0)
    return {"w1": x.T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}


def accuracy(params: Params, x: Any, y: Any) -> float:
    return float((scores(params, x)[1].argmax(1) == y).mean())


def batches(comm: Any, rows: int, batch: int, epochs: int, seed: int) -> Iterator[Any]:
    """This rank's rows of each step: its share of the data, shuffled again in each epoch; full batches only."""
    from pycollective.optim import partition

    for epoch in range(epochs):
        mine = partition(rows, comm, seed=seed, epoch=epoch, drop_last=True)
        yield from (mine[start : start + batch] for start in range(0, len(mine) - batch + 1, batch))


def flat(images: Any) -> Any:
    """Images as rows."""
    return images.reshape(len(images), -1)

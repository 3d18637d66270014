"""Calls of this library from inside a compiled JAX function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from pycollective.hvd import graph_call
from pycollective.hvd.graph_call import Start

__all__ = ["call"]


def call(
    start: Start, inputs: Sequence[Any], results: Sequence[jax.ShapeDtypeStruct], *, ordered: bool = True
) -> list[jax.Array]:
    """Call `start` each time that the traced function runs, and wait for its results.

    Args:
        start: it must keep to the shapes and element types of `results`.
        inputs: arrays or tracers.
        results: shapes and element types of the results.
        ordered: keep the program's order among all ordered calls, which makes it the same on all ranks; without it the
            compiler may move, merge or drop the call.

    Raises:
        jax.errors.JaxRuntimeError: when the function runs: what `start` reported, with its text.
    """
    dtypes = [np.dtype(result.dtype) for result in results]

    def run(*arrays: Any) -> list[Any]:
        return graph_call.run(start, [np.asarray(array) for array in arrays], dtypes)

    return list(io_callback(run, list(results), *inputs, ordered=ordered))

"""How TensorFlow is executing, under the names that Horovod's scripts use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from pycollective.hvd.built import num_rank_is_power_2 as num_rank_is_power_2

_F = TypeVar("_F", bound=Callable[..., Any])


def unconverted(function: _F) -> _F:
    """Makes AutoGraph call a function as it is, like do_not_convert, but costs nothing where it is called eagerly."""
    marked = tf.autograph.experimental.do_not_convert(lambda: None)
    for name, value in vars(marked).items():
        if not name.startswith("__"):
            setattr(function, name, value)
    return function


def _executing_eagerly() -> bool:
    """Return whether operations run at once; False while a `tf.function` or a v1 graph is built."""
    return bool(tf.executing_eagerly())


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Return whether TensorFlow has a GPU. The arguments are ignored."""
    return bool(tf.config.list_physical_devices("GPU"))

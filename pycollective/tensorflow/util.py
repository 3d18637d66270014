"""How TensorFlow is executing, under the names that Horovod's scripts use."""

from __future__ import annotations

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether operations run at once; False while a `tf.function` or a v1 graph is built."""
    return bool(tf.executing_eagerly())


def gpu_available(ext_base_name: str = "tensorflow", verbose: bool = False) -> bool:
    """Whether TensorFlow has a GPU. The arguments are ignored."""
    return bool(tf.config.list_physical_devices("GPU"))


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two; Adasum takes any number here."""
    return num_rank > 0 and num_rank & (num_rank - 1) == 0

"""Training that survives lost ranks, with tf.keras: Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1."""

from __future__ import annotations

from tensorflow import keras

from pycollective.keras import elastic_callbacks
from pycollective.keras.binding import bound
from pycollective.keras.elastic_callbacks import *  # noqa: F403 # what type checkers see
from pycollective.keras.elastic_state import KerasState, run

__all__ = [*elastic_callbacks.__all__, "KerasState", "run"]

globals().update(bound(elastic_callbacks, keras, __name__))

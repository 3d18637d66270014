"""Callbacks of tf.keras: Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1."""

from __future__ import annotations

from tensorflow import keras

from pycollective.keras import callback_methods
from pycollective.keras.binding import bound
from pycollective.keras.callback_methods import *  # noqa: F403 # what type checkers see

__all__ = [*callback_methods.__all__]

globals().update(bound(callback_methods, keras, __name__))

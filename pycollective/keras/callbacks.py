"""Callbacks of Keras 3."""

from __future__ import annotations

import keras

from pycollective.keras import callback_methods
from pycollective.keras.binding import bound
from pycollective.keras.callback_methods import *  # noqa: F403 # what type checkers see

__all__ = [*callback_methods.__all__]

globals().update(bound(callback_methods, keras, __name__))

"""Callbacks of Keras 3."""

from __future__ import annotations

import keras as _keras

from pycollective.keras import callback_methods as _methods
from pycollective.keras.binding import bound as _bound
from pycollective.keras.callback_methods import *  # noqa: F403 # what type checkers see

globals().update(_bound(_methods, _keras, __name__))

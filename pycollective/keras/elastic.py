"""Training that survives lost ranks, with Keras 3."""

from __future__ import annotations

import keras

from pycollective.keras import elastic_callbacks
from pycollective.keras.binding import bound
from pycollective.keras.elastic_callbacks import *  # noqa: F403 # what type checkers see
from pycollective.keras.elastic_state import KerasState, run

__all__ = [*elastic_callbacks.__all__, "KerasState", "run"]

globals().update(bound(elastic_callbacks, keras, __name__))

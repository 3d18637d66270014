"""The interface of `horovod.tensorflow.keras`: `import pycollective.tensorflow.keras as hvd`.

It serves tf.keras, which is Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1. See docs/from-horovod.md.
"""

from __future__ import annotations

from tensorflow import keras as _keras

from pycollective.hvd.interface import *  # noqa: F403 # for type checkers
from pycollective.keras import callback_methods as _methods
from pycollective.keras import interface as _interface
from pycollective.keras.interface import *  # noqa: F403
from pycollective.keras.optimizer import Loader as _Loader
from pycollective.tensorflow.keras import callbacks, elastic
from pycollective.tensorflow.keras.callbacks import *  # noqa: F403

__all__ = [*_interface.__all__, *_methods.__all__, "callbacks", "elastic", "load_model"]

load_model = _Loader(_keras).load_model

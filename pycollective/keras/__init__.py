"""The interface of `horovod.keras`, for Keras 3 on TensorFlow, JAX or torch: `import pycollective.keras as hvd`.

See docs/from-horovod.md.
"""

from __future__ import annotations

import keras as _keras

from pycollective.hvd.interface import *  # noqa: F403 # for type checkers
from pycollective.keras import callback_methods as _methods
from pycollective.keras import callbacks, elastic
from pycollective.keras import interface as _interface
from pycollective.keras.callbacks import *  # noqa: F403
from pycollective.keras.interface import *  # noqa: F403
from pycollective.keras.optimizer import Loader as _Loader

__all__ = [*_interface.__all__, *_methods.__all__, "callbacks", "elastic", "load_model"]

load_model = _Loader(_keras).load_model

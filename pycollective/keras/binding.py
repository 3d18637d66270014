"""How callbacks written once become classes of Keras 3 and of tf_keras, whose base classes differ."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keras.callbacks import Callback as Callback
    from keras.callbacks import ModelCheckpoint as ModelCheckpoint
else:

    class Callback:
        """Stands for Keras's class of this name until `bound` adds it."""

    class ModelCheckpoint(Callback):
        """Stands for Keras's class of this name until `bound` adds it."""


Logs = dict[str, Any] | None


def bound(methods: ModuleType, keras: Any, exporter: str) -> dict[str, type]:
    """Name -> class, for all names that a module of callbacks exports.

    Args:
        methods: the module.
        keras: the package of Keras from which the base classes are taken.
        exporter: the name of the module that exports the classes, in which pickle will look for them.
    """

    def with_base(name: str) -> type:
        kind = getattr(methods, name)
        base = keras.callbacks.ModelCheckpoint if issubclass(kind, ModelCheckpoint) else keras.callbacks.Callback
        return type(name, (kind, base), {"__module__": exporter, "__doc__": kind.__doc__})

    return {name: with_base(name) for name in methods.__all__}

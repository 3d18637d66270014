"""The state of a training with Keras, and the loop that returns to it after a loss."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from pycollective.hvd.elastic.running import run_graphs
from pycollective.hvd.elastic.state import ObjectState
from pycollective.hvd.exceptions import HorovodInternalError
from pycollective.keras.functions import broadcast_variables, is_built, variables_of


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a training function whose first argument is a KerasState; see pycollective.hvd.elastic.running.run.

    The loss of a rank reaches it in the backend's own class of errors if a compiled function was running.
    """

    return run_graphs(func, _internal_error)


def _internal_error(error: Exception) -> HorovodInternalError | None:
    """What a compiled function's error was caused by, if by the loss of a rank."""
    if "tensorflow" in sys.modules:
        from pycollective.tensorflow import graph_calls

        found = graph_calls.internal_error(error)
        if found is not None:
            return found
    jax = sys.modules.get("jax")
    _, named, text = str(error).partition(f"{HorovodInternalError.__name__}: ")
    if jax is None or not isinstance(error, jax.errors.JaxRuntimeError) or not named:
        return None
    if keras.backend.backend() == "jax":
        importlib.import_module("pycollective.jax.private").forget_failure()
    return HorovodInternalError(text.partition("\n")[0])


class KerasState(ObjectState):
    """The weights of a model, the state of its optimizer, and plain values, each of these an attribute."""

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        """
        Args:
            model: of Keras 3 or tf_keras, built.
            optimizer: by default the one that the model was compiled with.
            kwargs: the plain values, such as `batch` and `epoch`.

        Raises:
            ValueError: the model is not built.
        """
        if not model.built:
            raise ValueError("the model must be built: call model.build(input_shape), or give its input's shape")
        self.model, self.optimizer = model, optimizer or model.optimizer
        super().__init__(**kwargs)
        self._save_variables()

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._saved_variables, strict=True):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        broadcast_variables(self._variables(), root_rank=0)
        self._save_variables()
        super().sync()

    def reset(self) -> None:
        self.model.train_function = None  # compiled for the old number of ranks

    def kept(self) -> Any:
        return {**super().kept(), "variables": self._saved_variables}

    def take_kept(self, content: Any) -> None:
        self._saved_variables = content["variables"]
        super().take_kept(content)

    def _variables(self) -> list[Any]:
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # within fit(), JAX's current values are elsewhere
        if hasattr(self.optimizer, "build") and not is_built(self.optimizer):
            self.optimizer.build(self.model.trainable_variables)
        return [*self.model.weights, *variables_of(self.optimizer)]

    def _save_variables(self) -> None:
        self._saved_variables = [_copied(variable) for variable in self._variables()]


def _copied(variable: Any) -> Any:
    return np.array(keras.ops.convert_to_numpy(variable) if isinstance(variable, keras.Variable) else variable.numpy())

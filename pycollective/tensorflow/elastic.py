"""Training that survives lost ranks, like `horovod.tensorflow.elastic`: committed state, and `run`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pycollective.hvd.elastic.running import run_graphs
from pycollective.hvd.elastic.state import ObjectState, require_names
from pycollective.hvd.elastic.state import State as State
from pycollective.tensorflow import graph_calls
from pycollective.tensorflow.functions import broadcast_variables

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a training function whose first argument is a State, see pycollective.hvd.elastic.running.

    Errors of graphs that were caused by the loss of a rank are taken for HorovodInternalError.
    """

    return run_graphs(func, graph_calls.internal_error)


class _VariablesState(ObjectState):
    """Variables in named parts, and plain values, each an attribute."""

    def __init__(self, parts: Callable[[], dict[str, list[Any]]], session: Any, **kwargs: Any) -> None:
        """`parts`: returns them; called again as optimizers create variables late."""
        self._parts, self._session = parts, session
        self._assigned: dict[Any, Any] = {}
        self._saved_parts = self._values()
        super().__init__(**kwargs)

    def _values(self) -> dict[str, list[Any]]:
        parts = self._parts()
        if tf.executing_eagerly():
            return {name: [variable.numpy() for variable in variables] for name, variables in parts.items()}
        values: dict[str, list[Any]] = self._require_session().run(parts)
        return values

    def _require_session(self) -> Any:
        session = self._session or tf.compat.v1.get_default_session()
        if session is None:
            raise ValueError("session is needed in a v1 graph")
        return session

    def save(self) -> None:
        self._saved_parts = self._values()
        super().save()

    def restore(self) -> None:
        for name, variables in self._parts().items():
            # Variables that were created since start again from zero, as an optimizer's do.
            values = [*self._saved_parts.get(name, ()), *[None] * len(variables)]
            for variable, value in zip(variables, values, strict=False):
                self._assign(variable, value)
        super().restore()

    def _assign(self, variable: Any, value: Any) -> None:
        if tf.executing_eagerly():
            variable.assign(tf.zeros_like(variable) if value is None else value)
        elif value is not None:
            variable.load(value, self._require_session())

    def kept(self) -> Any:
        return {**super().kept(), "parts": self._saved_parts}

    def take_kept(self, content: Any) -> None:
        require_names("parts", self._saved_parts, content)
        self._saved_parts = content["parts"]
        super().take_kept(content)

    def sync(self) -> None:
        variables = [variable for part in self._parts().values() for variable in part]
        if tf.executing_eagerly():
            broadcast_variables(variables, root_rank=0)
        else:
            key = tf.compat.v1.get_default_graph()
            if key not in self._assigned:  # a graph does not forget operations
                self._assigned[key] = broadcast_variables(variables, root_rank=0)
            self._require_session().run(self._assigned[key])
        self._saved_parts = self._values()
        super().sync()


class TensorFlowState(_VariablesState):
    """The state of a training: a list of variables, and plain values as attributes, see ObjectState."""

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        """
        Args:
            variables: tf.Variables; by default all global ones of a v1 graph.
            session: of a v1 graph; by default the default session.
            kwargs: plain values.
        """
        self.variables = list(variables) if variables is not None else tf.compat.v1.global_variables()
        super().__init__(lambda: {"variables": self.variables}, session, **kwargs)


class TensorFlowKerasState(_VariablesState):
    """The state of a training of a Keras model (Keras 3 on TensorFlow, or tf_keras), and plain values as attributes."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        """
        Args:
            model: built.
            optimizer: by default the model's.
            backend: of a v1 graph: its get_session() is used.
            kwargs: plain values.

        Raises:
            ValueError: the model is not built, or there is no optimizer.
        """
        if not getattr(model, "built", True):
            raise ValueError("the model must be built: call model.build(input_shape) first")
        self.model = model
        self.optimizer: Any = optimizer or getattr(model, "optimizer", None)
        if self.optimizer is None:
            raise ValueError("optimizer is needed: the model is not compiled with one")
        session = None if backend is None or tf.executing_eagerly() else backend.get_session()
        super().__init__(self._all, session, **kwargs)

    def _all(self) -> dict[str, list[Any]]:
        variables = self.optimizer.variables
        optimizer = list(variables() if callable(variables) else variables)
        return {"model": list(self.model.variables), "optimizer": optimizer}

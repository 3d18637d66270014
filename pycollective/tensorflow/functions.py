"""Broadcasts that training scripts need: of variables and of objects, from one rank to all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from pycollective import checks
from pycollective.hvd import objects
from pycollective.hvd.operations import Broadcast
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.tensorflow.hvd import calls
from pycollective.tensorflow.util import unconverted


@unconverted
def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[tf.Tensor]:
    """Overwrite variables on all ranks with the root's, all in one call; returns their new values.

    In a v1 graph, running the values does it.
    """
    variables = checks.items(variables, "variables", "tf.Variables")
    values = list(map(_value, variables))
    received = calls.run(Broadcast(root_rank), values, name, process_set) if values else []
    assigned = [variable.assign(value) for variable, value in zip(variables, received, strict=True)]
    if tf.executing_eagerly():
        return received
    updates = [value for value in assigned if value is not None]
    with tf.control_dependencies(updates):
        return [tf.identity(value) for value in received]


def _value(variable: Any) -> tf.Tensor:
    if not callable(getattr(variable, "value", None)):  # Keras 3's is a property
        return tf.convert_to_tensor(getattr(variable, "value", variable))
    return variable.read_value() if hasattr(variable, "read_value") else tf.convert_to_tensor(variable)


@unconverted
def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: ProcessSet = global_process_set, inplace: bool = False
) -> Any:
    """Collective: overwrite variables on all ranks with the root's, all in one call.

    Args:
        variables: tf.Variables, or Keras 3's.
        inplace: without effect.

    Returns:
        None; in a v1 graph, the operation to run.

    Raises:
        FailedPreconditionError: the ranks' variables differ in number, shape or type.
    """
    values = broadcast_(variables, root_rank, process_set=process_set)
    return None if tf.compat.v1.executing_eagerly_outside_functions() else tf.group(*values)


@unconverted
def broadcast_global_variables(root_rank: int) -> Any:
    """The operation of a v1 graph that overwrites all global variables with the root's.

    Raises:
        RuntimeError: TensorFlow executes eagerly; broadcast_variables takes the variables there.
    """
    if tf.executing_eagerly():
        raise RuntimeError("there are no global variables in eager execution: use hvd.broadcast_variables(variables)")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """Broadcasts all global variables from the root when a session is created, for tf.compat.v1.train's sessions."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        """Args: root_rank: the rank whose values are broadcast; device: where the operation is placed."""
        super().__init__()
        self.root_rank, self.device = root_rank, device
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Called before the graph is finalized."""
        if self.bcast_op is None or self.bcast_op.graph != tf.compat.v1.get_default_graph():
            with tf.device(self.device):
                self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Called after a session was created."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Collective: broadcast the root's object to all ranks, see pycollective.hvd.objects.

    It is done at once, in a graph as well; `session` is ignored.
    """
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """A function that is broadcast_object with these arguments."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Collective: the list of all ranks' objects, in rank order; `session` is ignored."""
    return objects.allgather_object(obj, name, process_set)

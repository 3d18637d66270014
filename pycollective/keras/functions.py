"""Collectives on values and on the variables of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from pycollective.hvd import arguments, handles, operations
from pycollective.hvd.arguments import Average, get_average_backwards_compatibility_fun
from pycollective.hvd.gradients.agreement import DENSE, GradientAgreement
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.keras import backends
from pycollective.keras.compression import Compression
from pycollective.keras.reduction import rows_of

_operator = get_average_backwards_compatibility_fun(arguments)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Collective: the ranks' values combined.

    Args:
        value: a tensor, an array, a number or a list of numbers, of the same shape and type on all ranks.
        name: identifies the operation on all ranks; by default numbered.
        average: old argument: Average or Sum.
        op: Average (the default), Sum, Adasum, Min, Max or Product.

    Returns:
        a tensor of Keras's backend.
    """
    backend = backends.current()
    with handles.Naming("allreduce", name, global_process_set) as label:
        compressed, context = compression.compress(backend.tensor(backend.array(value)))
        x = backend.array(compressed)
        item = operations.reduction(x, x, label, _operator(op, average), prescale_factor, postscale_factor)
    handles.run([item], global_process_set)
    return compression.decompress(backend.tensor(x), context)


def allgather(value: Any, name: str | None = None) -> Any:
    """Collective: all ranks' values, concatenated along the first axis, whose extent may differ between ranks."""
    return _run(operations.Allgather(), value, name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Collective: the root's value; all ranks pass one of the same shape and type."""
    return _run(operations.Broadcast(root_rank), value, name)


def reducescatter(value: Any, name: str | None = None, op: int = Average) -> Any:
    """Collective: this rank's part, along the first axis, of the ranks' values combined (Average or Sum)."""
    return _run(operations.ReduceScatter(op), value, name)


def _run(operation: operations.HorovodOperation, value: Any, name: str | None) -> Any:
    """The result as a tensor of Keras's backend."""
    backend = backends.current()
    with handles.Naming(operation.kind, name, global_process_set) as label:
        x = backend.array(value)
        items = operation.items(label, global_process_set, [x], lambda *_: x)
    return backend.tensor(handles.run(items, global_process_set))


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Not possible: Keras keeps no list of all variables when it runs eagerly.

    Raises:
        RuntimeError: always; the message has the alternatives.
    """
    raise RuntimeError(
        "Keras keeps no list of all variables: use callbacks.BroadcastGlobalVariablesCallback(root_rank) in fit(), or "
        "broadcast_variables(model.weights + model.optimizer.variables, root_rank)"
    )


def broadcast_variables(variables: Sequence[Any], root_rank: int, process_set: ProcessSet = global_process_set) -> None:
    """Collective: overwrite variables of Keras 3 or of TensorFlow on all ranks with the root's.

    Raises:
        MismatchError: the ranks' variables differ; on every rank, with the names.
    """
    variables = list(variables)
    rows = rows_of(variables)
    prefix = handles.unnamed("broadcast_variables", process_set)
    with handles.internal_errors():
        GradientAgreement(prefix, rows, process_set).reach([DENSE] * len(rows))
    home = [backends.of_tensor(variable) for variable in variables]
    arrays = [backend.array(variable) for backend, variable in zip(home, variables, strict=True)]
    items = [
        operations.broadcast(x, x, root_rank, f"broadcast.{prefix}.{name}", process_set)
        for x, name in zip(arrays, rows, strict=True)
    ]
    handles.run(items, process_set, list)
    for backend, variable, x in zip(home, variables, arrays, strict=True):
        variable.assign(backend.tensor(x))


def variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer of Keras 3 or tf_keras; none of None."""
    found = getattr(optimizer, "variables", ())
    return list(found() if callable(found) else found)


def is_built(optimizer: Any) -> bool:
    """Return whether an optimizer has created its variables."""
    for name in ("built", "_built"):  # of Keras 3 and of tf_keras
        if hasattr(optimizer, name):
            return bool(getattr(optimizer, name))
    return optimizer is None

"""Broadcasts that training scripts need: of parameters and objects, from one rank to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.parameter import DeferredInitializationError, Parameter, ParameterDict

from pycollective import checks
from pycollective.errors import MismatchError
from pycollective.hvd import operations
from pycollective.hvd.objects import allgather_object as allgather_object
from pycollective.hvd.objects import broadcast_object as broadcast_object
from pycollective.hvd.process_sets import ProcessSet, global_process_set
from pycollective.mxnet.arrays import writable
from pycollective.mxnet.calls import mxnet_errors, submit_and_wait
from pycollective.mxnet.mpi_ops import broadcast_

Rows = dict[str, tuple[tuple[int, ...], str] | None]
"""Name of a parameter -> its shape and element type; None: its initialization is deferred until its shape is known."""


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, process_set: ProcessSet = global_process_set
) -> None:
    """Collective: overwrite parameters on all ranks with the root's, in one call.

    A parameter whose initialization is deferred on all ranks is broadcast when it is initialized, in the first forward
    pass. One that is deferred on some ranks, but not on the root (which has loaded a file), is initialized with the
    root's values.

    Args:
        params: block.collect_params(), or a dict of names and Parameters or NDArrays.
        root_rank: the rank whose values are broadcast, among all ranks.
        prefix: of the operations' names.

    Raises:
        ValueError: `params` is something else, or the root is not one of the ranks.
        MismatchError: names, shapes or types differ between ranks; on every rank.
    """
    with mxnet_errors():
        prefix = "" if prefix is None else checks.text(prefix, "prefix")
        named = _named(params)
        arrays = {name: _values(value) for name, value in named.items()}
        mine: Rows = {name: _row(array) for name, array in arrays.items()}
        root = _rows_of_root(mine, root_rank, f"parameters.{prefix}rows", process_set)
        pending = {}
        for name, row in root.items():
            label = f"parameters.{prefix}{name}"
            if row is None:
                _broadcast_when_initialized(named[name], root_rank, label, process_set)
                continue
            if arrays[name] is None:
                arrays[name] = mx.nd.empty(row[0], dtype=row[1])
            pending[label] = arrays[name]
        views = zip(pending, writable(list(pending.values())), strict=True)
        items = [operations.broadcast(x, x, root_rank, f"broadcast.{label}", process_set) for label, x in views]
        submit_and_wait(items, 0, process_set)
    for name, value in named.items():
        if isinstance(value, Parameter) and arrays[name] is not None:
            _spread(value, arrays[name])


def _named(params: Any) -> dict[str, Any]:
    """The parameters by name, in the order of the names.

    Raises:
        ValueError: something else.
    """
    if isinstance(params, (dict, ParameterDict)):
        rows = sorted(params.items(), key=lambda row: str(row[0]))
        if all(isinstance(value, (Parameter, mx.nd.NDArray)) for _, value in rows):
            return {str(name): value for name, value in rows}
    raise ValueError(
        f"params must be block.collect_params() or a dict of Parameters or NDArrays, not {checks.shown(params)}"
    )


def _values(value: Any) -> Any:
    """The NDArray of a parameter; None: initialization is deferred."""
    if not isinstance(value, Parameter):
        return value
    try:
        return value.list_data()[0]
    except DeferredInitializationError:
        return None


def _row(array: Any) -> Any:
    return None if array is None else (array.shape, np.dtype(array.dtype).name)


def _rows_of_root(mine: Rows, root_rank: int, label: str, process_set: ProcessSet) -> Rows:
    """Collective: what the root has, once all ranks know that it is what they can receive."""
    everyone: Sequence[Rows] = allgather_object(mine, label, process_set)
    ranks = process_set.ranks or []
    root_rank = checks.integer(root_rank, "root_rank")
    if root_rank not in ranks:
        raise ValueError(f"root_rank {root_rank} is not one of the ranks {ranks}")
    root = everyone[ranks.index(root_rank)]
    for rank, rows in zip(ranks, everyone, strict=True):
        differ = [name for name in sorted({*rows, *root}) if not _can_receive(rows, root, name)]
        if differ:
            first = differ[0]
            raise MismatchError(
                f"the ranks' parameters differ, {len(differ)} of rank {rank}'s from those of the root, rank "
                f"{root_rank}: {first!r} is {_described(rows, first)}, at the root {_described(root, first)}"
            )
    return root


def _can_receive(rows: Rows, root: Rows, name: str) -> bool:
    return name in rows and name in root and rows[name] in (None, root[name])


def _described(rows: Rows, name: str) -> str:
    row = rows.get(name)
    if row is None:
        return "not initialized yet" if name in rows else "missing"
    return f"{row[1]} of shape {row[0]}"


def _spread(parameter: Any, values: Any) -> None:
    """Give a parameter the values; on the first of its devices they may be in place already."""
    try:
        for other in parameter.list_data()[1:]:
            values.copyto(other)
    except DeferredInitializationError:
        parameter.set_data(values)  # which it keeps until the first forward pass


def _broadcast_when_initialized(parameter: Any, root_rank: int, label: str, process_set: ProcessSet) -> None:
    initialize = parameter._init_impl  # noqa: SLF001 (what Parameter calls once its shape is known)

    def initialize_and_broadcast(*arguments: Any) -> None:
        del parameter._init_impl  # noqa: SLF001
        initialize(*arguments)
        values = parameter.list_data()[0]
        broadcast_(values, root_rank, label, process_set=process_set)
        _spread(parameter, values)

    parameter._init_impl = initialize_and_broadcast  # noqa: SLF001

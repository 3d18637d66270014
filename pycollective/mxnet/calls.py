"""How Horovod's operations are called on NDArrays: read as NumPy arrays, run, and turned into NDArrays again.

Errors are of MXNet's own class, which scripts catch, as well as of this library's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import mxnet as mx
from mxnet.base import MXNetError

from pycollective import checks
from pycollective.engine import Item
from pycollective.errors import MismatchError
from pycollective.hvd import handles
from pycollective.hvd.operations import HorovodOperation
from pycollective.hvd.process_sets import ProcessSet
from pycollective.mxnet.arrays import copied, empty, readable, several, writable


class NDArrayMismatchError(MXNetError, MismatchError):
    """The ranks' calls, parameters or gradients do not match; on every rank, with the differences."""


class NDArrayValueError(MXNetError, ValueError):
    """An invalid argument, rejected before anything was sent."""


@contextlib.contextmanager
def mxnet_errors() -> Iterator[None]:
    """Convert errors to those that are MXNet's too. HorovodInternalError is none of MXNet's and stays as it is."""
    try:
        yield
    except MXNetError:
        raise
    except MismatchError as error:
        raise NDArrayMismatchError(str(error)) from error
    except (ValueError, NotImplementedError) as error:
        raise NDArrayValueError(str(error)) from error


def submit_and_wait(items: Sequence[Item], priority: int, process_set: ProcessSet) -> list[Any]:
    """Run a group; MXNet's priorities are higher for what runs first, the engine's are lower."""
    for item in items:
        item.priority = -checks.integer(priority, "priority")
    results: list[Any] = handles.run(items, process_set, list)
    return results


def run(
    operation: HorovodOperation,
    tensors: Any,
    name: str | None,
    priority: int,
    process_set: ProcessSet,
    in_place: bool = False,
) -> list[Any]:
    """The results of an operation on several NDArrays: new ones, or the same if it works in place.

    Raises: see mpi_ops.
    """
    made: list[Any] = []
    with mxnet_errors():
        with handles.Naming(operation.kind, name, process_set) as label:
            tensors = several(tensors)
            inputs = writable(tensors) if in_place else readable(tensors)

            def output(index: int, shape: Sequence[int]) -> Any:
                if in_place:
                    return inputs[index]
                array, view = empty(tensors[index], shape)
                made.append(array)
                return view

            items = operation.items(label, process_set, inputs, output)
        found = submit_and_wait(items, priority, process_set)
        if in_place:
            return list(tensors)
        if not operation.late:
            return made
        results = operation.results(found)
        counts = [mx.nd.array(result, dtype=result.dtype) for result in results[len(tensors) :]]
        return [*map(copied, results, tensors), *counts]

"""NDArrays as NumPy views of the same memory, in the order of MXNet's dependency engine.

MXNet executes operations in the background, in an order that it derives from what they read and write. A view is made
once nothing is pending that would interfere with its use; what MXNet is given to do afterwards sees what was written.
Views are not kept: oneDNN may move an array to other memory whenever an operation writes it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call
from mxnet.ndarray.sparse import BaseSparseNDArray

from pycollective import checks

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Memory:
    """What NumPy makes a view of. It keeps the NDArray alive for as long as the view exists."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self._owner, self.__array_interface__ = owner, interface


def readable(array: Any) -> NDArray[Any]:
    """A view to read, after all operations in flight that write the array.

    Raises:
        TypeError: not an NDArray, or a sparse one. ValueError: not in CPU memory, or without memory.
        MXNetError: an operation that writes it has failed.
    """
    _require_dense(array)
    array.wait_to_read()
    return _view(array)


def writable(array: Any) -> NDArray[Any]:
    """A view to change in place, after all operations in flight that read or write the array.

    Raises: see readable.
    """
    _require_dense(array)
    array.wait_to_read()  # raises what failed
    check_call(_LIB.MXNDArrayWaitToWrite(array.handle))
    return _view(array)


def empty(like: Any, shape: Sequence[int]) -> tuple[Any, NDArray[Any]]:
    """An uninitialized NDArray of the class, type and device of another, and a view of it."""
    with mx.util.np_shape(True):  # otherwise () and extents of 0 mean unknown shapes
        made = mx.nd.empty(tuple(shape), ctx=like.context, dtype=like.dtype)
    if isinstance(like, mx.np.ndarray):
        made = made.as_np_ndarray()
    return made, _view(made)


def copied(result: NDArray[Any], like: Any) -> Any:
    """A NumPy array as an NDArray of the class and device of another."""
    made, view = empty(like, result.shape)
    view[...] = result
    return made


def several(arrays: Any) -> list[Any]:
    """The NDArrays of a grouped operation.

    Raises:
        TypeError: not a sequence.
    """
    if isinstance(arrays, mx.nd.NDArray):
        checks.refuse_type("tensors", "a list or tuple of NDArrays", arrays)
    return checks.items(arrays, "tensors", "NDArrays")


def _require_dense(array: Any) -> None:
    if not isinstance(array, mx.nd.NDArray):
        checks.refuse_type("tensor", "an NDArray", array)
    if isinstance(array, BaseSparseNDArray):
        raise TypeError(f"tensor must be a dense NDArray, not one of storage type {array.stype!r}")
    try:
        device = array.context.device_type
    except KeyError:
        raise ValueError("tensor: an NDArray without a shape has no memory") from None
    if not device.startswith("cpu"):
        raise ValueError(f"tensor: an NDArray must be in CPU memory, not on {array.context}")


def _view(array: Any) -> NDArray[Any]:
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    shape, dtype = array.shape, np.dtype(array.dtype)
    if not address.value:  # it has no elements
        view: NDArray[Any] = np.empty(shape, dtype)
    else:
        interface = {"data": (address.value, False), "shape": shape, "typestr": dtype.str, "version": 3}
        view = np.asarray(_Memory(array, interface))
    return view.view(ml_dtypes.bfloat16) if dtype.names else view  # the only type with fields: MXNet's bfloat16

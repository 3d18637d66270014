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


_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class _Memory:
    """What NumPy makes a view of. It keeps the NDArray alive for as long as the view exists."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self._owner, self.__array_interface__ = owner, interface


def readable(arrays: Sequence[Any]) -> list[NDArray[Any]]:
    """Views to read, after all operations in flight that write the arrays.

    Raises:
        TypeError: not an NDArray, or a sparse one. ValueError: not in CPU memory, or without memory.
        MXNetError: an operation that writes one has failed.
    """
    for array in arrays:
        _require_dense(array)
        array.wait_to_read()
    return list(map(_view, arrays))


def writable(arrays: Sequence[Any]) -> list[NDArray[Any]]:
    """Views to change in place, after all operations in flight that read or write the arrays.

    Raises: see readable.
    """
    for array in arrays:
        _require_dense(array)
    for array in arrays:  # all of them before the first wait: NDArray.wait_to_write costs two changes of thread each
        written = ctypes.byref(array.handle)
        check_call(_LIB.MXEnginePushSyncND(_NO_OPERATION, None, None, _CPU, None, 0, written, 1, None, 0, None))
    return readable(arrays)


class _Context(ctypes.Structure):
    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int32))


_CPU = ctypes.byref(_Context(1, 0))
_NO_OPERATION = ctypes.CDLL(None).getpid
"""What MXNet executes as an operation that writes an array: a C function that leaves its arguments alone."""


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
    dtype = np.dtype(array.dtype)
    if dtype.names:  # MXNet's bfloat16 is a type with a field
        dtype = _BFLOAT16
    if not address.value:  # it has no elements
        return np.empty(array.shape, dtype)
    interface = {"data": (address.value, False), "shape": array.shape, "typestr": dtype.str, "version": 3}
    view: NDArray[Any] = np.asarray(_Memory(array, interface))
    return view.view(dtype) if dtype is _BFLOAT16 else view

"""Copies between GPU arrays and host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.cuda.arrays import View
from pycollective.comm.cuda.runtime import load


def to_host(array: View, stream: int) -> np.ndarray[Any, Any]:
    """A flat copy in host memory."""
    cuda = load()
    copy = np.empty(array.count, numpy_dtype(array.dtype))
    cuda.copy(copy.ctypes.data, array.address, copy.nbytes, stream, array.device)
    cuda.synchronize(stream, array.device)
    return copy


def to_device(array: np.ndarray[Any, Any], into: View, stream: int) -> None:
    """Copy a flat host array into a device array; returns when done."""
    cuda = load()
    cuda.copy(into.address, array.ctypes.data, array.nbytes, stream, into.device)
    cuda.synchronize(stream, into.device)

"""Arrays in GPU memory: what they are, and their copies in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycollective.comm.arguments import arrays
from pycollective.optim.arrays.containers import namespace


def element_and_device(array: Any, what: str) -> tuple[str, int | None]:
    """The name of the element type, and the number of the GPU; None for CPU memory.

    Raises:
        TypeError: not an array, or an element type that no collective takes.
        ValueError: on a GPU, and not C-contiguous.
    """
    if not arrays.on_device(array):
        return str(arrays.readable(array, what).dtype), None
    found = _view(array, what)
    return found.dtype, found.device


def to_host(array: Any, what: str) -> np.ndarray[Any, Any]:
    """The content of a GPU array, after the work in its library's current stream.

    Raises:
        TypeError, ValueError: see `element_and_device`.
    """
    from pycollective.comm.cuda.runtime import load

    found = _view(array, what)
    host = np.empty(found.shape, arrays.numpy_dtype(found.dtype))
    if host.size:
        device_array = load().DeviceArray(found.owner, found.address, found.shape, found.dtype, found.device)
        device_array.copy_to_host(host.reshape(-1).view(np.uint8), _stream(array))
    return host


def like(values: np.ndarray[Any, Any], array: Any) -> Any:
    """NumPy's `values`, of any shape and dtype, as an array of the library and device of `array`."""
    xp = namespace(array)
    if not arrays.on_device(array):
        return values if xp is namespace(values) else xp.from_dlpack(values)
    from pycollective.comm.cuda.arrays import allocate

    made = allocate(values.shape, str(values.dtype), _view(array, "an array").device)
    if values.size:
        made.copy_from_host(np.ascontiguousarray(values).reshape(-1).view(np.uint8), _stream(array))
    return xp.from_dlpack(made)


def _view(array: Any, what: str) -> Any:
    from pycollective.comm.cuda import arrays as device_arrays  # only where there are GPU arrays
    from pycollective.comm.cuda.runtime import load

    load()  # raises if there is no GPU path
    return device_arrays.view(array, _stream(array), what)


def _stream(array: Any) -> int:
    from pycollective.comm.cuda.arrays import stream_of

    return stream_of(None, array)

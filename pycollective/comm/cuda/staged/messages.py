"""Messages of arrays in GPU memory, staged through host memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from pycollective.comm.arguments import arrays as host_arrays
from pycollective.comm.cuda import arrays


def host_copy(x: Any) -> np.ndarray[Any, Any]:
    """A host copy of a device array, for a message."""
    stream = arrays.stream_of(None, x)
    return arrays.to_host(arrays.view(x, stream, "x"), stream)


class ReceiveBuffer:
    """The host memory that receives a message for a device array.

    Args:
        out: the device array.

    Attributes:
        copy: the memory.

    Raises:
        ValueError: out is read-only or not contiguous.
    """

    def __init__(self, out: Any) -> None:
        self._stream = arrays.stream_of(None, out)
        self._into = arrays.view(out, self._stream, "out")
        if not self._into.writable:
            raise ValueError("out is read-only")
        self.copy = np.empty(self._into.count, host_arrays.numpy_dtype(self._into.dtype))
        self._work: Any = None
        self._copied = False

    def behind(self, work: Any) -> ReceiveBuffer:
        """This object, as the work of a nonblocking message."""
        self._work = work
        return self

    def finish(self) -> None:
        """Copy the message into the device array."""
        if not self._copied:
            arrays.to_device(self.copy, self._into, self._stream)
            self._copied = True

    def wait(self, timeout: float | None = None) -> None:
        """Block until the message is in the device array."""
        self._work.wait(timeout)
        self.finish()

    def test(self) -> bool:
        """Return whether the message is in the device array."""
        if not self._work.test():
            return False
        self.wait()
        return True

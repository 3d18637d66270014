"""GPU arrays through host memory: where no way between the GPUs works, and on communicators that span hosts by MPI.

The stream is waited for, the call is made by the CPU, and the result is copied back: slow, not capturable, and right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective.comm.arrays import numpy_dtype
from pycollective.comm.cuda.arrays import View
from pycollective.comm.cuda.request import Request
from pycollective.comm.cuda.runtime import load
from pycollective.errors import CommunicatorError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


def run_through_host(comm: Communicator, request: Request, kind: int) -> None:
    """Make a call with copies of its arrays in host memory. Returns when the result is there.

    Args:
        kind: the core's number of the collective.

    Raises:
        CommunicatorError: the stream is being captured.
    """
    cuda, s = load(), request.signature
    if cuda.is_capturing(request.stream):
        raise CommunicatorError("this call goes through host memory and cannot be captured into a graph")
    x = None if request.x is None else to_host(request.x, request.stream)
    same = request.x is not None and request.out is not None and request.x.address == request.out.address
    out = None
    if request.out is not None:
        out = x if same and s.counts is None else np.empty(request.out.count, numpy_dtype(s.dtype))
    scale = None if s.scale == (1.0, 1.0) else s.scale
    op: Any = s.op if s.row.reduces else "sum"
    comm._call(kind, x, out, op, s.topology, s.root, s.counts, scale, request.timeout, False, s.note)
    if request.out is not None and out is not None:
        to_device(out, request.out, request.stream)


def to_host(array: View, stream: int) -> np.ndarray[Any, Any]:
    """A copy in host memory, flat."""
    cuda = load()
    copy = np.empty(array.count, numpy_dtype(array.dtype))
    cuda.copy(copy.ctypes.data, array.address, copy.nbytes, stream, array.device)
    cuda.synchronize(stream, array.device)
    return copy


def to_device(array: np.ndarray[Any, Any], into: View, stream: int) -> None:
    """Copy a flat host array into a device array; returns when it is done."""
    cuda = load()
    cuda.copy(into.address, array.ctypes.data, array.nbytes, stream, into.device)
    cuda.synchronize(stream, into.device)

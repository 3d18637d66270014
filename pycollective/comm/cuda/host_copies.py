"""GPU arrays via host memory: if no path between the GPUs works, or between hosts without NCCL.

Synchronizes the stream, executes the call on the CPU and copies the result back: slow and not capturable.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.backend import HostBackend
from pycollective.comm.cuda.copies import to_device, to_host
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import sign
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError


class HostCopies:
    """Executes calls on device arrays through copies in host memory.

    Args:
        host: the communicator's backend.
    """

    def __init__(self, host: HostBackend) -> None:
        self._host = host

    def run(self, request: CallRequest) -> None:
        """Execute the call. Returns when the result is available.

        Raises:
            CommunicatorError: the stream is being captured.
        """
        cuda, s = load(), sign(request)
        if cuda.is_capturing(request.stream):
            raise CommunicatorError("this call goes through host memory and cannot be captured into a graph")
        x = None if request.x is None else to_host(request.x, request.stream)
        same = request.x is not None and request.out is not None and request.x.address == request.out.address
        out = None
        if request.out is not None:
            out = x if same and s.counts is None else np.empty(request.out.count, numpy_dtype(s.dtype))
        if s.collective == "barrier":
            x = out = np.empty(0, np.uint8)
        self._host.run(replace(request, x=x, out=out, device=None, stream=0, max_channels=0, signature=None))
        if request.out is not None and out is not None:
            to_device(out, request.out, request.stream)

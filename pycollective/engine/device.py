"""The engine's work on a GPU: in its own stream, with the fusion buffer in device memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pycollective.comm.cuda import arrays
from pycollective.comm.cuda.arrays import ITEMSIZE
from pycollective.comm.cuda.runtime import load
from pycollective.engine.operation import DeviceArrays, EngineJob, Item
from pycollective.errors import CommunicatorError
from pycollective.schedule.collectives import OPERATIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pycollective.comm.communicator import Communicator

_logger = logging.getLogger(__name__)
_ALIGNMENT = 16
"""Alignment in bytes of pieces in the fusion buffer: the access size of a GPU thread."""
Piece = tuple[int, int, int]
"""Addresses of input (0: zeros) and output (0: unused), and size in bytes."""


def enter(comm: Communicator, item: Item) -> None:
    """Called by the submitting rank: check the arrays, and record the stream position that the operation must wait for.

    A stream that is being captured into a graph is refused.
    """
    cuda, stream = load(), arrays.stream_of(None, item.x)
    if cuda.is_capturing(stream):
        raise ValueError(f"{item.name!r} cannot be captured into a graph; the communicator's own collectives can")
    x = arrays.view(item.x, stream, "x")
    gpu = DeviceArrays(x.device, x.dtype, x.nbytes)
    if item.out is not None:
        out = arrays.view(item.out, stream, "out")
        _check_out(item, x, out)
        if OPERATIONS[item.collective].fused and comm.gpu is not None and x.nbytes > 0 and out.address == x.address:
            window, offset = comm.gpu.locate(x.address, x.nbytes) or (-1, 0)
            gpu.place = -1 if window < 0 else window << 40 | offset
    gpu.entered = cuda.Event(x.device)
    gpu.entered.record(stream)
    item.gpu = gpu


def _check_out(item: Item, x: arrays.View, out: arrays.View) -> None:
    if not out.writable:
        raise ValueError(f"{item.name!r}: out is read-only")
    if (out.dtype, out.device) != (x.dtype, x.device):
        raise TypeError(f"{item.name!r}: out is {out.dtype} on device {out.device}, x {x.dtype} on device {x.device}")
    if OPERATIONS[item.collective].shaped_as_input and out.count != x.count:
        raise ValueError(f"{item.name!r}: out has shape {out.shape}, x {x.shape}")


class EngineStream:
    """A stream for communication: collectives in it overlap with the application's kernels.

    An operation waits for the stream position at which it was submitted; waiting for an operation makes the caller's
    current stream wait for it, without blocking the host.

    Args:
        buffer_bytes: of the fusion buffer, created by the first batch that needs it.
        topology: of the allreduces; None: the default.
    """

    def __init__(self, comm: Communicator, device: int, buffer_bytes: int, topology: str | None) -> None:
        self._comm, self.device, self._topology = comm, device, topology
        self._stream = load().Stream(device)
        self.address = int(self._stream.address)  # its handle
        self._bytes = max(buffer_bytes // _ALIGNMENT, 1) * _ALIGNMENT
        self._buffer: Any = None
        self._failed = False

    def follow(self, items: Sequence[Item | None]) -> None:
        """Make future work in the stream wait until the items' inputs are ready."""
        for item in items:
            if item is not None and item.gpu is not None:
                item.gpu.entered.hold_back(self.address)

    def completion(self) -> Callable[[Any, Any], None]:
        """Record the current position of the stream. The returned function makes the current stream of an array's
        library wait for that position, so that results can be used there."""
        event = load().Event(self.device)
        event.record(self.address)

        def complete(x: Any, result: Any) -> None:
            stream = arrays.stream_of(None, x)
            event.hold_back(stream)
            arrays.keep_for(result[0] if isinstance(result, tuple) else result, stream)

        return complete

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Any:
        """The contribution of a rank that has joined."""
        return arrays.allocate(shape, dtype, self.device)  # initialized to zeros

    def through_host(self, work: Callable[[NDArray[Any]], NDArray[Any]], x: Any, out: Any) -> Any:
        """Apply `work` to a flat copy of x in host memory; the result is copied to `out` (None: a new array)."""
        result = arrays.new_like(x, tuple(x.shape), self.address) if out is None else out
        made = work(arrays.to_host(arrays.view(x, self.address, "x"), self.address))
        arrays.to_device(made, arrays.view(result, self.address, "out"), self.address)
        return result

    # -- allreduce ---------------------------------------------------------------------------------------------------

    def allreduce(self, jobs: Sequence[EngineJob]) -> list[Any]:
        """Collective: reduce the arrays of a batch as if they were one; returns their results.

        Arrays in windows are reduced in place, adjacent ones together; the others pass through the fusion buffer. All
        ranks treat a batch the same way, so it fails on all of them or on none.
        """
        results = [self._out(job) for job in jobs]
        if len(jobs) == 1 and not jobs[0].absent:
            self._reduce(jobs[0], jobs[0].item.x, results[0])  # type: ignore[union-attr]
            return results
        in_windows = sorted((job for job in jobs if job.place >= 0 and not job.absent), key=lambda job: job.place)
        self._reduce_in_windows(in_windows)
        rest = [(job, out) for job, out in zip(jobs, results, strict=True) if job.place < 0 or job.absent]
        if rest and self._has_buffer():
            self._reduce_packed([job for job, _ in rest], [out for _, out in rest])
        else:
            for job, out in rest:
                x = job.x()
                self._reduce(job, x, x if job.item is None else out)
        return results

    def _out(self, job: EngineJob) -> Any:
        if job.item is None:
            return None
        out = job.item.out
        return arrays.new_like(job.item.x, tuple(job.item.x.shape), self.address) if out is None else out

    def _reduce(self, job: EngineJob, x: Any, out: Any) -> None:
        self._comm.allreduce(
            x, out, op=job.op, prescale=job.prescale, postscale=job.postscale, topology=self._topology,
            stream=self.address,
        )  # fmt: skip

    def _reduce_in_windows(self, jobs: Sequence[EngineJob]) -> None:
        """`jobs`: in memory order."""
        spans: list[list[EngineJob]] = []
        end = -1
        for job in jobs:
            if job.place != end:
                spans.append([])
            spans[-1].append(job)
            end = job.place + job.nbytes
        for span in spans:
            self._reduce_span(span)

    def _reduce_span(self, span: Sequence[EngineJob]) -> None:
        item = span[0].item
        assert item is not None
        x = arrays.view(item.x, self.address, "x")
        count = sum(job.nbytes for job in span) // ITEMSIZE[x.dtype]
        joined = load().DeviceArray(x, x.address, (count,), x.dtype, self.device)
        self._reduce(span[0], joined, joined)

    # -- the fusion buffer -------------------------------------------------------------------------------------------

    def _has_buffer(self) -> bool:
        """Collective, on first use: whether all ranks have one; else none uses it."""
        if self._buffer is None and not self._failed:
            try:
                self._buffer = self._comm.empty(self._bytes, "uint8", device=self.device)
            except CommunicatorError as error:
                _logger.warning("arrays in GPU memory are reduced one by one: no fusion buffer (%s)", error)
                self._failed = True
        return self._buffer is not None

    def _reduce_packed(self, jobs: Sequence[EngineJob], results: Sequence[Any]) -> None:
        pieces = [self._piece(job, out) for job, out in zip(jobs, results, strict=True)]
        base, itemsize = self._buffer.address, ITEMSIZE[jobs[0].dtype]
        for tile in tiles(pieces, self._bytes):
            used = tile[-1][0] + tile[-1][1][2]
            load().move(self.device, [(base + at, x, nbytes) for at, (x, _, nbytes) in tile], self.address)
            part = load().DeviceArray(self._buffer, base, (-(-used // itemsize),), jobs[0].dtype, self.device)
            self._reduce(jobs[0], part, part)
            load().move(self.device, [(out, base + at, nbytes) for at, (_, out, nbytes) in tile if out], self.address)

    def _piece(self, job: EngineJob, out: Any) -> Piece:
        if job.item is None:
            return 0, 0, job.nbytes
        x, target = arrays.view(job.item.x, self.address, "x"), arrays.view(out, self.address, "out")
        return x.address, target.address, x.nbytes


def tiles(pieces: Sequence[Piece], room: int) -> list[list[tuple[int, Piece]]]:
    """Divide pieces among fillings of a buffer of `room` bytes, a multiple of 16, as (offset, part of a piece)."""
    made: list[list[tuple[int, Piece]]] = []
    at = room
    for x, out, nbytes in pieces:
        done = 0
        while done < nbytes:
            if at >= room:
                made.append([])
                at = 0
            step = min(nbytes - done, room - at)
            made[-1].append((at, (x and x + done, out and out + done, step)))
            done += step
            at += math.ceil(step / _ALIGNMENT) * _ALIGNMENT
    return made

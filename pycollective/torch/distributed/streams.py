"""Collectives on CUDA tensors: put into a stream, where they wait for what they need; the host goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from pycollective.comm import request
from pycollective.comm.arguments.options import Options
from pycollective.comm.communicator import Communicator
from pycollective.errors import TimeoutError
from pycollective.schedule.collectives import CALLS
from pycollective.torch.distributed.cuda import cuda

_NAP, _LONGEST_NAP = 1e-5, 1e-3


class Streams:
    """The streams of a process group, beside the computation's, so that one may overlap the other."""

    def __init__(self) -> None:
        self._own: dict[tuple[int, bool], Any] = {}
        self._used: set[int] = set()

    def enter(self, device: int, jobs: bool, later: bool) -> Any:
        """The stream for a call; what the current one holds by now comes first.

        Args:
            jobs: the call is one of the job queue's, which has a communicator and a stream of its own.
            later: the call is asynchronous; the others go into the current stream.
        """
        current = cuda().current(device)
        self._used.add(device)
        if not later:
            return current
        stream = self._own.get((device, jobs))
        if stream is None:
            stream = self._own[device, jobs] = cuda().stream(device)
        cuda().hold_back(stream, cuda().mark(current))
        return stream

    def synchronize(self) -> None:
        """Block until the current streams of the devices that were used, and these, have completed."""
        for device in self._used:
            cuda().synchronize(cuda().current(device))
        for stream in self._own.values():
            cuda().synchronize(stream)


def launch(
    comm: Communicator,
    kind: str,
    data: Any,
    into: Any,
    stream: Any,
    timeout: float,
    *,
    op: str = "sum",
    topology: Any = None,
    root: int = -1,
    counts: tuple[int, ...] | None = None,
    scale: tuple[float, float] | None = None,
) -> None:
    """Put a collective into a stream. `data` and `into`: tensors on one device, or None where a rank has none."""
    options: Options = {"topology": topology, "timeout": timeout, "stream": stream}
    if CALLS[kind].reduces:
        options["op"] = op
    if scale is not None:
        options["prescale"], options["postscale"] = scale
    x = None if data is None else cuda().array(data)
    out = x if into is data else None if into is None else cuda().array(into)
    comm.call(request.read(kind, x, out, None, options, root, counts))


class StreamWork(dist.Work):
    """A call in a stream. Its methods mean what they mean for torch's own CUDA backend.

    Args:
        comm: whose call it is.
        device, stream: where it is.
        outputs: the tensors that it fills.
    """

    copies = False

    def __init__(self, comm: Communicator, device: int, stream: Any, outputs: Sequence[Any]) -> None:
        super().__init__()
        self._comm, self._device, self._stream, self.outputs = comm, device, stream, list(outputs)
        self._completed = cuda().mark(stream)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait for the call. The host waits only with a timeout, then until it has completed.

        Raises:
            pycollective.TimeoutError: not completed in time. What has gone wrong on the communicator's device by now.
        """
        if isinstance(timeout, timedelta) and timeout:
            self._block(timeout.total_seconds())
        cuda().hold_back(cuda().current(self._device), self._completed)
        self._check()
        return True

    def _block(self, seconds: float) -> None:
        until, nap = time.monotonic() + seconds, _NAP
        while not self._completed.query():
            self._check()
            if time.monotonic() > until:
                raise TimeoutError("the call has not completed yet; it can be waited for again")
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)

    def _check(self) -> None:
        self._comm.check()

    def synchronize(self) -> None:
        """wait()."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Whether the stream has come past the call. Does not block."""
        return bool(self._completed.query())

    test = is_completed

    def is_success(self) -> bool:
        """Whether the stream has come past the call and nothing went wrong."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """What has gone wrong on the communicator's device, if the stream has come past the call."""
        if self.is_completed():
            try:
                self._check()
            except RuntimeError as error:
                return error
        return None

    def result(self) -> list[Any]:
        """The tensors that the call fills; the current stream waits for them."""
        self.wait()
        return self.outputs

    def get_future(self) -> Any:
        """A torch.futures.Future of the tensors. It is done at once: its callbacks run in a stream that waits."""
        return cuda().promise(self.outputs, self._device, self._stream)

    def together(self, outputs: Sequence[Any]) -> StreamWork:
        """This call and those before it in its stream, as one."""
        return StreamWork(self._comm, self._device, self._stream, outputs)


def finish_in(stream: Any, finish: Callable[[], None], outputs: Sequence[Any]) -> None:
    """What is left to do behind a call (copying to tensors that are not contiguous), in its stream."""
    with cuda().using(stream):
        finish()
    for x in outputs:
        cuda().keep(x, stream)


def put_on_device(copy: Any, out: Any, device: int) -> None:
    """Copy a message that has come into CPU memory to its tensor; returns when it is there."""
    current = cuda().current(device)
    with cuda().using(current):
        out.detach().copy_(copy)
    cuda().synchronize(current)

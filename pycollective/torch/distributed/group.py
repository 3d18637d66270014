"""The process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from pycollective import _core
from pycollective.errors import CommunicatorError, Error, TimeoutError
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.collectives.arguments import Together, one, options
from pycollective.torch.distributed.collectives.data_movement import Moving
from pycollective.torch.distributed.collectives.operators import operator
from pycollective.torch.distributed.collectives.reductions import Reductions
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution.streams import DeviceWork, put_on_device
from pycollective.torch.distributed.execution.work import PendingWorks, PlainWork, Work
from pycollective.torch.distributed.health import Health

_NOTHING = torch.empty(0, dtype=torch.uint8)

PACKED = 1 << 20
"""Size in bytes from which a tensor of a coalesced allreduce is sent separately: copying would cost more."""


class ProcessGroup(Reductions, Moving):
    """A process group for CPU and CUDA tensors.

    Made by init_process_group("pycollective") and new_group(backend="pycollective"). Every rank makes the same calls in
    the same order, as torch requires; whether they are asynchronous may differ between ranks. A call that does not
    match raises pycollective.MismatchError on all ranks; a lost rank PeerLostError; a late one TimeoutError, which
    names it. All are RuntimeErrors. Afterwards the group is unusable.
    """

    # -- several tensors at once -----------------------------------------------------------------------------------

    def allreduce_coalesced(self, inputs: Sequence[Any], opts: Any = None) -> Any:
        """allreduce of several tensors; small ones of one type are packed into one call."""
        opts = options(c10d.AllreduceCoalescedOptions, opts)
        if self.options.engine and inputs and not self._jobs.inside() and cuda().device(inputs[0]) < 0:
            return self._fused_together(inputs, opts)
        packs: dict[Any, list[Any]] = {}
        for i, x in enumerate(inputs):
            tensors.check([x], "allreduce")
            packs.setdefault(x.dtype if x.numel() * x.element_size() < PACKED else i, []).append(x)
        return self._together(self._allreduce, zip(packs.values()), opts)

    def _fused_together(self, inputs: Sequence[Any], opts: Any) -> Any:
        """Reduce several tensors through the engine, which does the packing and unpacking."""
        for x in inputs:
            tensors.check([x], "allreduce")
        named = [operator(opts.reduceOp, x) for x in inputs]
        joins = [tensors.JoinedOutputs([x]) for x in inputs]
        self._settle("allreduce", inputs, True)
        data = [tensors.numbers(joined.fill().whole) for joined in joins]
        self._calls += 1
        call = self._fusion.start("allreduce", [(x, x) for x in data], named[0][0], -1, named[0][1])
        finishes = [joined.finish for joined in joins if joined.finish is not None]

        def finish() -> None:
            for each in finishes:
                each()

        work = Work(call, inputs, finish if finishes else None, self._jobs)
        return self._fused(work, [*data, *inputs], getattr(opts, "asyncOp", True))

    def allgather_coalesced(self, outputs: Sequence[Sequence[Any]], inputs: Sequence[Any], opts: Any = None) -> Any:
        """allgather of several tensors: outputs[rank][i] is inputs[i] of that rank."""
        opts = options(c10d.AllgatherOptions, opts)
        columns = [[row[i] for row in outputs] for i in range(len(inputs))]
        return self._together(self.allgather, zip(columns, inputs, strict=True), opts)

    def all_gather_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """all_gather_single of several tensors."""
        opts = options(c10d.AllgatherOptions, opts)
        return self._together(self.all_gather_single, zip(outputs, inputs, strict=True), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter_single_coalesced(self, outputs: Sequence[Any], inputs: Sequence[Any], opts: Any = None) -> Any:
        """reduce_scatter_single of several tensors."""
        opts = options(c10d.ReduceScatterOptions, opts)
        return self._together(self.reduce_scatter_single, zip(outputs, inputs, strict=True), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _together(self, call: Callable[..., Any], arguments: Iterable[tuple[Any, ...]], opts: Any) -> Any:
        later = getattr(opts, "asyncOp", True)
        each = Together(getattr(opts, "reduceOp", None), opts.timeout, later)
        works = [call(*some, each) for some in arguments]
        outputs = [x for work in works for x in work.outputs]
        if works and isinstance(works[-1], DeviceWork):
            return works[-1].together(outputs)
        return (
            Work(PendingWorks(works), outputs, None, self._jobs) if later else PlainWork.completed(outputs, self._jobs)
        )

    # -- barriers ------------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, *more: Any) -> Any:
        """Completes once every rank has called; with CUDA tensors, also all previous work in the streams."""
        opts = options(c10d.BarrierOptions, opts, *more)
        self._streams.synchronize()
        return self._call("barrier", _NOTHING, _NOTHING, opts, [])

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the missing ranks, always all of them.

        Before torch 2.14 dist.monitored_barrier rejects every backend but Gloo: call the group's method.

        Args:
            timeout: how long to wait, also in seconds; 0: do not wait, if all ranks must have arrived before;
                None: the group's timeout.
            wait_all_ranks: has no effect.

        Raises:
            pycollective.TimeoutError: ranks are missing after `timeout`; the group is unusable afterwards.
            ValueError: `timeout` is not a duration, negative, or 1e9 s or more.
        """
        opts = c10d.BarrierOptions()
        if timeout is not None:
            opts.timeout = _duration(timeout)
        try:
            self.barrier(opts).wait()
        except TimeoutError as error:
            # In Gloo's words, for callers that look for them.
            error.args = (f"Rank {self.rank()} timed out in monitoredBarrier: {error}",)
            raise

    def errored(self) -> Exception | None:
        """The error that has ended the group; None: it works, as far as this rank has heard. torchft asks for it."""
        try:
            Health(self.comm).check()
        except Error as error:
            return error
        return None

    # -- messages ------------------------------------------------------------

    def send(self, inputs: Any, dest: int, tag: int = 0) -> Any:
        """Start sending a tensor to a rank, which must receive it with the same tag and size."""
        x = one(inputs, "send")
        data = _core.HostBuffer.bytes_of(x)
        if data is None or cuda().device(x) >= 0:
            tensors.check([x], "send")
            if cuda().device(x) >= 0:  # messages are staged in CPU memory
                x = cuda().on_host(x.detach())
            data = _core.HostBuffer(tensors.as_bytes(tensors.straight(x)))
        work = PlainWork()
        work.call = self._messages.send(data, dest, tag)
        work.outputs, work.jobs = [x], None
        return work

    def recv(self, outputs: Any, source: int, tag: int = 0) -> Any:
        """Start receiving a tensor from a rank. Messages of one rank with the same tag arrive in order."""
        return self._receive(one(outputs, "recv"), source, tag)

    def recv_anysource(self, outputs: Any, tag: int = 0) -> Any:
        """Start receiving a tensor from any rank; the Work's source_rank() returns the sender."""
        return self._receive(one(outputs, "recv"), None, tag)

    def _receive(self, out: Any, source: int | None, tag: int) -> Any:
        data = _core.HostBuffer.bytes_of(out)
        if data is not None and cuda().device(out) < 0:
            work = PlainWork()
            work.call = self._messages.receive(data, source, tag)
            work.outputs, work.jobs = [out], None
            return work
        tensors.check([out], "recv")
        device = cuda().device(out)
        if device >= 0:
            copy = torch.empty(out.shape, dtype=out.dtype)
            message = self._messages.receive(_core.HostBuffer(tensors.as_bytes(copy)), source, tag)
            return Work(message, [out], lambda: put_on_device(copy, out, device))
        joined = tensors.JoinedOutputs([out])
        message = self._messages.receive(_core.HostBuffer(tensors.as_bytes(joined.whole)), source, tag)
        return Work(message, [out], joined.finish)

    def _start_coalescing(self, device: Any) -> None:
        pass  # calls start as soon as they are made

    def _end_coalescing(self, device: Any) -> None:
        pass

    # -- shutdown -----------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group; later calls raise. Called by destroy_process_group."""
        self._messages.close()
        self._jobs.close()
        self._fusion.close()
        self.comm.free()

    def abort(self) -> None:
        """End the group now, also for ranks that are in a call, which then raises."""
        text = f"rank {self.comm.rank} has aborted the process group"
        self.comm.backend.fail_all(CommunicatorError(text))
        self._jobs.abort(text)
        self.shutdown()


def _duration(timeout: timedelta | float) -> timedelta:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
        raise ValueError(f"timeout must be a timedelta or a number of seconds from 0 to below 1e9, not {timeout!r}")
    return timedelta(seconds=seconds)

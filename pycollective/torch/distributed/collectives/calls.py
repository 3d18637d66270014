"""How the calls of a process group are executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pycollective import _core
from pycollective.comm.communicator import Communicator
from pycollective.comm.request import CallRequest
from pycollective.torch.distributed import tensors
from pycollective.torch.distributed.collectives.multi_step import Steps
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution import streams
from pycollective.torch.distributed.execution.hazards import DIRECT, ENGINE, JOBS, STREAM, IssueOrder
from pycollective.torch.distributed.execution.job_queue import JobQueue
from pycollective.torch.distributed.execution.streams import DeviceWork, Streams
from pycollective.torch.distributed.execution.work import PlainWork, Several, Work
from pycollective.torch.distributed.options import Options

if TYPE_CHECKING:
    from pycollective.engine import Engine

_NO_TIME = timedelta()
_FUSED = frozenset(("allreduce", "broadcast", "barrier"))
"""Collectives that the engine executes, if the options request it."""
_NAMES_IN_TRACES = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all"}
profiler_enabled = torch.autograd._profiler_enabled


def recorded(kind: str) -> AbstractContextManager[Any]:
    """Context manager that records its body in traces of torch.profiler, named like calls of torch's own backends.

    The recorded time is that of the call; for an asynchronous one, of its start.
    """
    name = f"pycollective:{_NAMES_IN_TRACES.get(kind, kind)}"
    drawn: AbstractContextManager[Any] = torch.autograd.profiler.record_function(name)
    return drawn


class Calls:
    """Executes the calls of a process group: in order, in a stream, by the engine or in the job queue.

    Args:
        comm: of the group's ranks.
        jobs: for calls of several steps and for the callbacks of futures.
        options: see Options.
        timeout: seconds that a call waits for the others.
    """

    def __init__(self, comm: Communicator, jobs: JobQueue, options: Options, timeout: float) -> None:
        self.comm, self.jobs, self.options = comm, jobs, options
        self.order, self.streams = IssueOrder(), Streams()
        self.engine: Engine | None = None
        self._fused = 0
        self.calls_made, self._recorded = 0, False
        self.direct = not options.engine and options.topology is None
        self.wait_at_most(timeout)

    def wait_at_most(self, seconds: float) -> None:
        """Set how long calls wait for the other ranks from now on, if their options set no other time."""
        self.timeout = seconds
        self.reduce_plain = _core.reducer_in_place(self.comm, seconds, dist.ReduceOp.SUM, dist.ReduceOp.AVG)

    def seconds(self, opts: Any) -> float:
        """How long a call waits for the others."""
        given = opts.timeout
        return float(given.total_seconds()) if given >= _NO_TIME else self.timeout  # negative: not set

    @contextmanager
    def _record(self, kind: str) -> Iterator[None]:
        self._recorded = True
        try:
            with recorded(kind):
                yield
        finally:
            self._recorded = False

    def settle(self, kind: str, touched: Sequence[Any], copies: bool = False) -> None:
        """Wait, before a call and before it copies anything, for those that it must not overtake; see IssueOrder."""
        if self.order.pending and not self.jobs.inside():
            on_device = touched and cuda().device(touched[0]) >= 0
            self.order.settle(touched, STREAM if on_device else ENGINE if self._fuses(kind) else DIRECT, copies)

    def _fuses(self, kind: str) -> bool:
        return self.options.engine and kind in _FUSED

    def call(
        self, request: CallRequest, opts: Any, outputs: Sequence[Any], finish: Callable[[], None] | None = None
    ) -> Any:
        """Execute a collective of one step, on tensors as `numbers` and `moved` return them; returns a Work."""
        kind, root, data, into = request.collective, request.root, request.x, request.out
        if profiler_enabled() and not self._recorded:
            with self._record(kind):
                return self.call(request, opts, outputs, finish)
        if root != -1 and not 0 <= root < self.comm.size:
            raise ValueError(f"root {root} is not a rank of this process group of {self.comm.size}")
        self.calls_made += 1
        within = self.jobs.inside()
        comm = self.jobs.comm if within else self.comm
        device = -1 if kind == "barrier" else cuda().device(into if data is None else data)
        later = getattr(opts, "asyncOp", True)
        touched = (data, into, *outputs)
        request.topology, request.timeout = self.options.topology_for(kind), self.seconds(opts)
        if device >= 0:  # in the current stream, or in another if the call is asynchronous
            stream = self.streams.enter(device, within, later)
            streams.launch(comm, request, stream)
            if finish is not None:
                streams.finish_in(stream, finish, outputs)
            made = DeviceWork(comm, device, stream, outputs)
            return made if within else self.order.note(made, touched, STREAM)
        if self._fuses(kind) and not within:
            return self.fuse(request, [(data, into)], opts, outputs, finish)
        request.x, request.out = tensors.buffers(data, into)
        if later:
            work = Work(comm.backend.start(request), outputs, finish, self.jobs)
            return work if within else self.order.note(work, touched, DIRECT)
        comm.backend.run(request)
        if finish is not None:
            finish()
        return PlainWork.completed(outputs, self.jobs)

    def fuse(
        self,
        request: CallRequest,
        arrays: Sequence[tuple[Any, Any]],
        opts: Any,
        outputs: Sequence[Any],
        finish: Callable[[], None] | None,
    ) -> Work:
        """Make the call on one or several (input, output) through the engine, fused; returns a Work of all.

        They are named by number: all ranks make the same calls in the same order.
        """
        from pycollective.engine import Engine, Item

        if self.engine is None:
            self.engine = Engine(self.comm)  # collective, like all calls
        kind, op = request.collective, str(request.op)
        before, after = request.scale or (1.0, 1.0)
        items = []
        for data, into in arrays:
            self._fused += 1
            x, out = (None, None) if kind == "barrier" else (data, into)
            items.append(Item(kind, f"{kind}.{self._fused}", x, out, op, request.root, None, before, after))
        work = Work(Several(self.engine.submit(items)), outputs, finish, self.jobs)
        if getattr(opts, "asyncOp", True):
            return self.order.note(work, [*(x for pair in arrays for x in pair), *outputs], ENGINE)
        work.wait()
        return work

    def run_steps(self, steps: Steps, touched: Sequence[Any], outputs: Sequence[Any], opts: Any) -> Any:
        """Execute a collective of several steps that reads and writes the tensors `touched`; returns a Work."""
        if profiler_enabled() and not self._recorded:
            with self._record(steps.kind):
                return self.run_steps(steps, touched, outputs, opts)
        self.calls_made += 1
        device = cuda().device(touched[0])
        if device >= 0:
            return self._steps_in_stream(steps, touched, outputs, opts, device)

        def job(jobs: JobQueue) -> None:
            steps.move(jobs.comm, steps.agree(jobs.comm))

        if self.jobs.inside():
            job(self.jobs)
            return PlainWork.completed(outputs, self.jobs)
        self.order.settle(touched, JOBS, False)
        if getattr(opts, "asyncOp", True):
            return self.order.note(Work(self.jobs.submit(job), outputs, None, self.jobs), touched, JOBS)
        self.jobs.run(job)
        return PlainWork.completed(outputs, self.jobs)

    def _steps_in_stream(
        self, steps: Steps, touched: Sequence[Any], outputs: Sequence[Any], opts: Any, device: int
    ) -> DeviceWork:
        """Run the steps on tensors of a device. Here the host waits until the ranks have agreed.

        A kernel that waits for its peers blocks other kernels on the GPU: kernels must be launched in program order, so
        neither from the job queue's thread nor on its communicator.
        """
        within = self.jobs.inside()
        if not within:
            self.order.settle(touched, STREAM, False)
        current = cuda().current(device)

        def agree(jobs: JobQueue) -> Any:
            with cuda().using(current):  # this may be the job queue's thread
                return steps.agree(jobs.comm)

        agreed = self.jobs.run(agree)
        # A sparse tensor consists of several, which would all have to be kept for another stream.
        dense = touched[0].layout == torch.strided
        stream = self.streams.enter(device, within, dense and getattr(opts, "asyncOp", True))
        comm = self.jobs.comm if within else self.comm
        with cuda().using(stream):
            steps.move(comm, agreed)
        for x in touched if dense else ():
            cuda().keep(x, stream)
        work = DeviceWork(comm, device, stream, outputs)
        return work if within else self.order.note(work, touched, STREAM)

"""The base of all calls of a process group: torch's queries about a group, and how a call is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pycollective import _core
from pycollective.comm.communicator import Communicator
from pycollective.comm.request import CallRequest
from pycollective.torch.distributed import default_backend, tensors
from pycollective.torch.distributed.collectives import profiling
from pycollective.torch.distributed.collectives.multi_step import Steps
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution import streams
from pycollective.torch.distributed.execution.fusion import Fusion
from pycollective.torch.distributed.execution.hazards import DIRECT, ENGINE, JOBS, STREAM, IssueOrder
from pycollective.torch.distributed.execution.job_queue import JobQueue
from pycollective.torch.distributed.execution.streams import DeviceWork, Streams
from pycollective.torch.distributed.execution.work import PlainWork, Work
from pycollective.torch.distributed.options import Options
from pycollective.torch.distributed.point_to_point.messages import Messages

_NO_TIME = timedelta()


class Calls(dist.ProcessGroup):
    """Args:
    comm: of the group's ranks.
    jobs: for calls of several steps and for the callbacks of futures.
    messages: for send and recv.
    options: see Options.
    timeout: seconds that a call waits for the others.
    name: torch's name of the group.
    store: of the group.
    """

    def __init__(
        self,
        comm: Communicator,
        jobs: JobQueue,
        messages: Messages,
        options: Options,
        timeout: float,
        name: str,
        store: Any,
    ) -> None:
        super().__init__(comm.rank, comm.size)  # the form with a store is refused to Python subclasses (torch 2.13)
        self.comm, self.options = comm, options
        self._jobs, self._messages, self._fusion = jobs, messages, Fusion(comm)
        self._timeout, self._name, self._desc, self._store = timeout, name, "undefined", store
        self._order, self._streams, self._calls, self._drawn = IssueOrder(), Streams(), 0, False
        self._direct = not options.engine and options.topology is None
        self._reduce_plain = _core.reducer_in_place(comm, timeout, dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        self._default = default_backend.add(self, comm.rank, comm.size)

    # -- torch's queries about a group -----------------------------------------------------------------------------

    supports_splitting = supports_reconfigure = supports_window = False

    def getBackendName(self) -> str:
        """pycollective."""
        return "pycollective"

    name = getBackendName

    def getRank(self) -> int:
        """This process's rank in the group."""
        return int(self.comm.rank)

    def getSize(self) -> int:
        """The number of ranks in the group."""
        return int(self.comm.size)

    rank, size = getRank, getSize

    def getGroupName(self) -> str:
        """The name by which functional collectives find the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch once it has chosen a name."""
        self._name = name

    _set_group_name = setGroupName
    group_name = property(getGroupName)

    def getGroupDesc(self) -> str:
        """The group's description, given by its creator."""
        return self._desc

    def setGroupDesc(self, description: str) -> None:
        """See getGroupDesc."""
        self._desc = description

    _set_group_desc = setGroupDesc
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device("cpu"), torch.device("cuda")] if cuda().usable() else [torch.device("cpu")]

    def _get_backend(self, device: Any) -> Any:
        return self  # for every device: each call checks its tensors

    def get_group_store(self) -> Any:
        """The store through which the ranks found each other."""
        return self._store

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._calls

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls from now on."""
        self._timeout = self._messages.timeout = timeout.total_seconds()

    _set_default_timeout = set_timeout

    # -- how a call is executed --------------------------------------------------------------------------------------

    def _seconds(self, opts: Any) -> float:
        given = opts.timeout
        return float(given.total_seconds()) if given >= _NO_TIME else self._timeout  # negative: not set

    @contextmanager
    def _draw(self, kind: str) -> Iterator[None]:
        self._drawn = True
        try:
            with profiling.recorded(kind):
                yield
        finally:
            self._drawn = False

    def _settle(self, kind: str, touched: Sequence[Any], copies: bool = False) -> None:
        """Called before a call, and before it copies anything; see IssueOrder."""
        if self._order.pending and not self._jobs.inside():
            on_device = touched and cuda().device(touched[0]) >= 0
            self._order.settle(touched, STREAM if on_device else ENGINE if self._fuses(kind) else DIRECT, copies)

    def _fuses(self, kind: str) -> bool:
        return self.options.engine and kind in Fusion.KINDS

    def _call(
        self,
        kind: str,
        data: Any,
        into: Any,
        opts: Any,
        outputs: Sequence[Any],
        finish: Callable[[], None] | None = None,
        *,
        op: str = "sum",
        root: int = -1,
        counts: tuple[int, ...] | None = None,
        scale: tuple[float, float] | None = None,
    ) -> Any:
        """A collective of one step, on tensors as `numbers` and `moved` return them; returns a Work."""
        if profiling.enabled() and not self._drawn:
            with self._draw(kind):
                return self._call(kind, data, into, opts, outputs, finish, op=op, root=root, counts=counts, scale=scale)
        if root != -1 and not 0 <= root < self.comm.size:
            raise ValueError(f"root {root} is not a rank of this process group of {self.comm.size}")
        self._calls += 1
        within = self._jobs.inside()
        comm = self._jobs.comm if within else self.comm
        device = -1 if kind == "barrier" else cuda().device(into if data is None else data)
        later = getattr(opts, "asyncOp", True)
        touched = (data, into, *outputs)
        if device >= 0:  # in the current stream, or in another if the call is asynchronous
            stream = self._streams.enter(device, within, later)
            streams.launch(
                comm, kind, data, into, stream, self._seconds(opts),
                op=op, topology=self.options.topology_for(kind), root=root, counts=counts, scale=scale,
            )  # fmt: skip
            if finish is not None:
                streams.finish_in(stream, finish, outputs)
            made = DeviceWork(comm, device, stream, outputs)
            return made if within else self._order.note(made, touched, STREAM)
        if self._fuses(kind) and not within:
            call = self._fusion.start(kind, [(data, into)], op, root, scale)
            return self._fused(Work(call, outputs, finish, self._jobs), touched, later)
        x, out = tensors.buffers(data, into)
        request = CallRequest(
            kind, x, out, root=root, counts=counts, op=op, scale=scale,
            topology=self.options.topology_for(kind), timeout=self._seconds(opts),
        )  # fmt: skip
        if later:
            work = Work(comm.backend.start(request), outputs, finish, self._jobs)
            return work if within else self._order.note(work, touched, DIRECT)
        comm.backend.run(request)
        if finish is not None:
            finish()
        return PlainWork.completed(outputs, self._jobs)

    def _fused(self, work: Work, touched: Sequence[Any], later: bool) -> Work:
        if later:
            return self._order.note(work, touched, ENGINE)
        work.wait()
        return work

    def _steps(self, steps: Steps, touched: Sequence[Any], outputs: Sequence[Any], opts: Any) -> Any:
        """A collective of several steps that reads and writes the tensors `touched`."""
        if profiling.enabled() and not self._drawn:
            with self._draw(steps.kind):
                return self._steps(steps, touched, outputs, opts)
        self._calls += 1
        device = cuda().device(touched[0])
        if device >= 0:
            return self._steps_in_stream(steps, touched, outputs, opts, device)

        def job(jobs: JobQueue) -> None:
            steps.move(jobs.comm, steps.agree(jobs.comm))

        if self._jobs.inside():
            job(self._jobs)
            return PlainWork.completed(outputs, self._jobs)
        self._order.settle(touched, JOBS, False)
        if getattr(opts, "asyncOp", True):
            return self._order.note(Work(self._jobs.submit(job), outputs, None, self._jobs), touched, JOBS)
        self._jobs.run(job)
        return PlainWork.completed(outputs, self._jobs)

    def _steps_in_stream(
        self, steps: Steps, touched: Sequence[Any], outputs: Sequence[Any], opts: Any, device: int
    ) -> DeviceWork:
        """Run the steps on tensors of a device. Here the host waits until the ranks have agreed.

        A kernel that waits for its peers blocks other kernels on the GPU: kernels must be launched in program order, so
        neither from the job queue's thread nor on its communicator.
        """
        within = self._jobs.inside()
        if not within:
            self._order.settle(touched, STREAM, False)
        current = cuda().current(device)

        def agree(jobs: JobQueue) -> Any:
            with cuda().using(current):  # this may be the job queue's thread
                return steps.agree(jobs.comm)

        agreed = self._jobs.run(agree)
        # A sparse tensor consists of several, which would all have to be kept for another stream.
        dense = touched[0].layout == torch.strided
        stream = self._streams.enter(device, within, dense and getattr(opts, "asyncOp", True))
        comm = self._jobs.comm if within else self.comm
        with cuda().using(stream):
            steps.move(comm, agreed)
        for x in touched if dense else ():
            cuda().keep(x, stream)
        work = DeviceWork(comm, device, stream, outputs)
        return work if within else self._order.note(work, touched, STREAM)

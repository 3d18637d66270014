"""The process group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from pycollective import _core
from pycollective.comm.communicator import Communicator
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, TimeoutError
from pycollective.torch.distributed import c10d_backend, health, tensors
from pycollective.torch.distributed.collectives import coalesced, data_movement, reductions
from pycollective.torch.distributed.collectives.arguments import one, options
from pycollective.torch.distributed.collectives.calls import Calls
from pycollective.torch.distributed.cuda import cuda
from pycollective.torch.distributed.execution.job_queue import JobQueue
from pycollective.torch.distributed.execution.streams import put_on_device
from pycollective.torch.distributed.execution.work import PlainWork, Work
from pycollective.torch.distributed.options import Options
from pycollective.torch.distributed.point_to_point.messages import Messages

_NOTHING = torch.empty(0, dtype=torch.uint8)


class ProcessGroup(Calls, dist.ProcessGroup):
    """A process group for CPU and CUDA tensors.

    Made by init_process_group("pycollective") and new_group(backend="pycollective"). Every rank makes the same calls in
    the same order, as torch requires; whether they are asynchronous may differ between ranks. A call that does not
    match raises pycollective.MismatchError on all ranks; a lost rank PeerLostError; a late one TimeoutError, which
    names it. All are RuntimeErrors. Afterwards the group is unusable.

    Args:
        comm, jobs, options, timeout: see Calls.
        messages: for send and recv.
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
        # The form with a store is refused to Python subclasses (torch 2.13).
        dist.ProcessGroup.__init__(self, comm.rank, comm.size)
        Calls.__init__(self, comm, jobs, options, timeout)
        self.messages, self._name, self._desc, self._store = messages, name, "undefined", store
        self._default = c10d_backend.add_default(self)

    # -- collectives: `opts` are torch's options objects; asyncOp: return before the call has completed ---------------

    allreduce = reductions.allreduce
    reduce = reductions.reduce
    reduce_scatter = reductions.reduce_scatter
    reduce_scatter_single = _reduce_scatter_base = reductions.reduce_scatter_single
    broadcast = data_movement.broadcast
    allgather = data_movement.allgather
    all_gather_single = _allgather_base = data_movement.all_gather_single
    gather = data_movement.gather
    scatter = data_movement.scatter
    all_to_all_single = alltoall_base = data_movement.all_to_all_single
    alltoall = data_movement.alltoall
    allreduce_coalesced = coalesced.allreduce_coalesced
    allgather_coalesced = coalesced.allgather_coalesced
    all_gather_single_coalesced = allgather_into_tensor_coalesced = coalesced.all_gather_single_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced = coalesced.reduce_scatter_single_coalesced

    # -- barriers ------------------------------------------------------------------------------------------------------

    def barrier(self, opts: Any = None, *more: Any) -> Any:
        """Completes once every rank has called; with CUDA tensors, also all previous work in the streams."""
        opts = options(c10d.BarrierOptions, opts, *more)
        self.streams.synchronize()
        return self.call(CallRequest("barrier", _NOTHING, _NOTHING), opts, [])

    def monitored_barrier(self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose error names the missing ranks, always all of them.

        Before torch 2.14 dist.monitored_barrier rejects every backend but Gloo: call the group's method.

        Args:
            timeout: how long to wait, also in seconds; 0: fail unless all ranks have arrived already;
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
            health.check(self.comm.backend)
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
        work.call = self.messages.send(data, dest, tag)
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
            work.call = self.messages.receive(data, source, tag)
            work.outputs, work.jobs = [out], None
            return work
        tensors.check([out], "recv")
        device = cuda().device(out)
        if device >= 0:
            copy = torch.empty(out.shape, dtype=out.dtype)
            message = self.messages.receive(_core.HostBuffer(tensors.as_bytes(copy)), source, tag)
            return Work(message, [out], lambda: put_on_device(copy, out, device))
        joined = tensors.JoinedOutputs([out])
        message = self.messages.receive(_core.HostBuffer(tensors.as_bytes(joined.whole)), source, tag)
        return Work(message, [out], joined.finish)

    def _start_coalescing(self, device: Any) -> None:
        pass  # calls start as soon as they are made

    _end_coalescing = _start_coalescing

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
        return self.calls_made

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of calls from now on."""
        self.messages.timeout = timeout.total_seconds()
        self.wait_at_most(self.messages.timeout)

    _set_default_timeout = set_timeout

    # -- shutdown -----------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the group; later calls raise. Called by destroy_process_group."""
        self.messages.close()
        self.jobs.close()
        if self.engine is not None:
            self.engine.close()
            self.engine = None
        self.comm.free()

    def abort(self) -> None:
        """End the group now, also for ranks that are in a call, which then raises."""
        text = f"rank {self.comm.rank} has aborted the process group"
        self.comm.backend.fail_all(CommunicatorError(text))
        self.jobs.abort(text)
        self.shutdown()


def _duration(timeout: timedelta | float) -> timedelta:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
        raise ValueError(f"timeout must be a timedelta or a number of seconds from 0 to below 1e9, not {timeout!r}")
    return timedelta(seconds=seconds)

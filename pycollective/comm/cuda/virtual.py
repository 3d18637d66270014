"""Many ranks on one GPU: the ranks are threads of this process, and their calls are combined into one launch.

Every block of every rank is then resident at the same time, so that each program runs, and can be timed realistically,
on a machine with a single GPU. All arrays are in one address space: every one is equivalent to a window.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pycollective import _core, settings
from pycollective.comm.cuda.arrays import allocate, order_streams
from pycollective.comm.cuda.paths import Path
from pycollective.comm.cuda.planner import PLAN_BYTES, DevicePlanner, Planned
from pycollective.comm.cuda.runtime import device_number, load
from pycollective.comm.cuda.signature import for_core, sign
from pycollective.comm.cuda.windows import share_locally
from pycollective.comm.host.segments import setting
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, MismatchError, TimeoutError


def require_room(size: int, device: str | int) -> int:
    """Thread blocks that each of `size` ranks can have on a GPU at the same time.

    Raises:
        CommunicatorError: no such GPU, or more ranks than it can run at a time. ValueError: not a device.
    """
    cuda = load()
    number = device_number(device)
    if not 0 <= number < cuda.device_count():
        raise CommunicatorError(f"there is no CUDA device {number}; there are {cuda.device_count()}")
    if size > cuda.MOST_VIRTUAL_RANKS:
        raise CommunicatorError(f"at most {cuda.MOST_VIRTUAL_RANKS} ranks can share one GPU, not {size}")
    channels = min(int(cuda.Team.most_channels(number, size)), int(settings.read("PYCOLLECTIVE_CUDA_BLOCKS")))
    if channels < 1:
        raise CommunicatorError(f"device {number} has too few multiprocessors for {size} ranks")
    return channels


class VirtualWorld:
    """n ranks on one GPU, called together by one thread. `VirtualTeam` is the form with one thread per rank.

    Args:
        size: ranks.
        device: the GPU's number.
        staged: copy arrays through scratch memory, as ranks in processes do with arrays that are not in windows.

    Raises:
        CommunicatorError: no GPU, or more ranks than it has multiprocessors.
    """

    def __init__(self, size: int, device: int = 0, *, staged: bool = False) -> None:
        cuda = load()
        self.size, self.device, self.staged = size, device, staged
        channels = require_room(size, device)
        scratch = int(setting("PYCOLLECTIVE_CUDA_SCRATCH"))
        self._mailboxes = share_locally(size, cuda.Team.mailbox_bytes(size, channels, scratch), device)
        self.team = cuda.Team(device, size, 0, size, list(self._mailboxes.bases), channels, scratch, True, PLAN_BYTES)
        self.planner = DevicePlanner(self.team, size, range(size))
        self.channels = channels

    def plan(self, requests: Sequence[CallRequest]) -> Planned:
        """The plan of one call of all ranks, in rank order.

        Raises:
            MismatchError: the ranks' calls do not match.
        """
        signatures = [sign(request) for request in requests]
        first = signatures[0]
        for rank, request in enumerate(requests):
            if not signatures[rank].matches(first) or request.step != requests[0].step:
                mine, theirs = _described(requests[0]), _described(request)
                raise MismatchError(f"rank 0 calls {mine}, rank {rank} calls {theirs}")
        if self.planner.takes_packets(first):
            return self.planner.plan(first, 0, False)
        bits = {_placement(request) for request in requests}
        # In place on some ranks only: staged on all.
        placement = bits.pop() if len(bits) == 1 and not self.staged else 0
        return self.planner.plan(first, placement, placement != 0)

    def run(self, requests: Sequence[CallRequest], stream: int) -> None:
        """Enqueue one call of all ranks, in rank order, in a stream."""
        planned = self.plan(requests)
        signature = sign(requests[0])
        addresses, copies = [], []
        for rank, request in enumerate(requests):
            if request.device != self.device:
                raise ValueError(f"rank {rank}'s arrays are on device {request.device}, not {self.device}")
            x = request.x.address if request.x is not None else 0
            out = request.out.address if request.out is not None else 0
            if signature.row.single_buffer and planned.plan.placement:
                if rank == signature.root and x != out and request.out is not None:
                    copies.append((out, x, request.out.nbytes))
                x = out
            addresses.append((x, out))
        timeout = min(_core.timeout_of(request.timeout) for request in requests)
        self.team.run(planned.plan, addresses, stream, signature.max_channels, timeout, copies)


def _described(request: CallRequest) -> str:
    signature = sign(request)
    step = f", step {request.step}" if signature.row.weighted else ""
    return signature.text(str(signature.topology)) + step


def _placement(request: CallRequest) -> int:
    return _core.placement(request.collective, for_core(request.x), for_core(request.out), True, True)


@dataclass
class _Meeting:
    """Collects the calls of a world's threads; the last one to arrive launches.

    Attributes:
        round: number of calls launched, or failed on all ranks.
        outcome: the exception of the latest one, kept until all ranks have arrived for the next.
    """

    round: int = 0
    requests: dict[int, CallRequest] = field(default_factory=dict)
    outcome: Exception | None = None
    world: VirtualWorld | None = None
    changed: threading.Condition = field(default_factory=threading.Condition)


_meetings: dict[bytes, _Meeting] = {}


class VirtualTeam:
    """One rank of a world whose ranks are threads, which share a GPU. Collective."""

    def __init__(self, host: HostTeam, device: int) -> None:
        self.device = device
        self.path = Path("local", "the ranks are threads of one process")
        self._rank, self._size, self._host = host.group.rank, host.group.size, host
        key = b""
        if self._rank == 0:
            made = _Meeting()
            key = str(id(made)).encode()
            _meetings[key] = made
        key = host.exchange(key)[0]
        self._meeting = _meetings[key]
        devices = host.exchange(str(device).encode())
        problem = ""
        if self._rank == 0:
            del _meetings[key]
            try:
                if len(set(devices)) != 1:
                    raise CommunicatorError(
                        "the arrays of ranks that are threads are on different GPUs: give each rank a process"
                    )
                self._meeting.world = VirtualWorld(self._size, device)
            except CommunicatorError as error:
                problem = str(error)
        problem = host.exchange(problem.encode())[0].decode()
        if problem:
            raise CommunicatorError(problem)

    def run(self, request: CallRequest) -> None:
        """Wait for the other ranks' calls; the last one's thread enqueues all of them in its stream.

        Raises:
            MismatchError: on every rank. TimeoutError: a rank did not call. PeerLostError: a rank's thread has failed.
            Any other error of the call, on every rank.
        """
        self.check()
        if self._host.team.closed:
            raise CommunicatorError("the communicator was freed")
        meeting = self._meeting
        with meeting.changed:
            now = meeting.round
            meeting.requests[self._rank] = request
            if len(meeting.requests) == self._size:
                self._launch(request.stream)
            else:
                self._wait(now, _core.timeout_of(request.timeout))
            if meeting.outcome is not None:
                raise type(meeting.outcome)(str(meeting.outcome))

    def _launch(self, stream: int) -> None:
        cuda, meeting = load(), self._meeting
        assert meeting.world is not None
        requests = [meeting.requests[rank] for rank in range(self._size)]
        others = {request.stream for request in requests} - {stream}
        meeting.outcome = None
        try:
            for other in others:
                order_streams(cuda, self.device, other, stream)
            meeting.world.run(requests, stream)
            for other in others:
                order_streams(cuda, self.device, stream, other)
        except MismatchError as error:
            self._host.fail(error, self._rank)
            meeting.outcome = error
        except Exception as error:
            meeting.outcome = error
        meeting.requests = {}
        meeting.round += 1
        meeting.changed.notify_all()

    def _wait(self, now: int, timeout: float) -> None:
        end, meeting = time.monotonic() + timeout, self._meeting
        while meeting.round == now:
            meeting.changed.wait(0.05)
            if meeting.round != now:
                return
            self._host.check()
            if time.monotonic() > end:
                missing = [rank for rank in range(self._size) if rank not in meeting.requests]
                names = ", ".join(map(str, missing))
                text = f"rank {names} has not made the call within {timeout:g} s"
                self._host.fail(TimeoutError(text), missing[0])
                self._host.check()

    def check(self) -> None:
        assert self._meeting.world is not None
        found = self._meeting.world.team.fault()
        if found is not None and not self._host.team.poisoned:
            kind, rank, peer, *_ = found
            self._host.fail(TimeoutError(f"{kind} on the GPU: rank {rank} waited for rank {peer}"), peer)
        self._host.check()

    def locate(self, address: int, nbytes: int) -> None:
        """None: all memory is equivalent to a window, without common offsets."""
        return None

    def close(self) -> None:
        """The communicator was freed; the memory is freed with the last rank."""

    def empty(self, number: int, shape: tuple[int, ...], dtype: str) -> Any:
        """A DeviceArray: on one GPU all memory is equivalent to a window."""
        return allocate(shape, dtype, self.device)

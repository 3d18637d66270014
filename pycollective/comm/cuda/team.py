"""GPU calls of a rank that is a process: its part of the communicator on its device.

Created by the first GPU call of a communicator, by all ranks together. From then on a call is enqueued in a stream and
the host continues; later errors are raised by the next call, by a handle, or by `Communicator.check`.
"""

from __future__ import annotations

import functools
import json
import math
import threading
from typing import Any

from pycollective import _core, settings
from pycollective.comm.cuda.arrays import ITEMSIZE, View, allocate
from pycollective.comm.cuda.deferred_free import (
    MAILBOXES,
    ClosedWindows,
    close_when_idle,
    free_closed,
    is_waiting,
    table_bytes,
)
from pycollective.comm.cuda.paths import HOST, Path, agree
from pycollective.comm.cuda.planner import PLAN_BYTES, DevicePlanner, Planned
from pycollective.comm.cuda.runtime import load
from pycollective.comm.cuda.signature import for_core, sign
from pycollective.comm.cuda.watch import watch
from pycollective.comm.cuda.windows import DeviceWindow, share, share_locally
from pycollective.comm.host.segments import setting
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest
from pycollective.errors import CommunicatorError, Error, MismatchError, TimeoutError


class DeviceTeam:
    """One rank's GPU side of a communicator whose ranks are processes of one host. Collective."""

    def __init__(self, host: HostTeam, device: int) -> None:
        cuda = load()
        self._host, self.device = host, device
        exchange, rank, size = host.exchange, host.group.rank, host.group.size
        self._rank = rank
        if size > (most := cuda.MOST_RANKS):
            raise CommunicatorError(
                f"at most {most} ranks of a host can share GPU memory; this communicator has {size}"
            )
        self.path = agree(exchange, rank, size, device) if size > 1 else Path("local", "there is one rank")
        self._windows = 0
        self._freed = False
        self._freeing = threading.Lock()  # held while the watcher uses the team or the team is released
        if self.path.kind == HOST:
            return
        mine = {
            "gpu": cuda.properties(device)["uuid"],
            "channels": [cuda.Team.most_channels(device, sharing + 1) for sharing in range(size)],
            "blocks": int(settings.read("PYCOLLECTIVE_CUDA_BLOCKS")),
            "scratch": int(setting("PYCOLLECTIVE_CUDA_SCRATCH")),
        }
        received = [json.loads(text) for text in exchange(json.dumps(mine).encode())]
        gpus = [each["gpu"] for each in received]
        channels = _agree_on_channels(gpus, [each["channels"] for each in received])
        channels = min(channels, *(each["blocks"] for each in received))
        if channels < 1:
            raise CommunicatorError("a GPU cannot run the blocks of this communicator's ranks at the same time")
        scratch = received[0]["scratch"]  # the first rank's setting applies: all must cut the same way
        nbytes = cuda.Team.mailbox_bytes(size, channels, scratch)
        self._mailboxes = self._share(nbytes)
        shared = gpus.count(mine["gpu"]) > 1
        self._team = cuda.Team(
            device, size, rank, 1, list(self._mailboxes.bases), channels, scratch, shared, PLAN_BYTES
        )
        self._planner = DevicePlanner(self._team, size, [rank])
        self._ledger = _core.Ledger(self._shared(_core.Ledger.segment_bytes(size)), rank, size)
        self._closed = ClosedWindows(self._shared(table_bytes(size)), rank, size)
        exchange(b"")  # every rank's mailbox exists and is empty
        watch(host, self)

    def _shared(self, nbytes: int) -> _core.Segment:
        segment = self._host.share(nbytes)
        assert segment is not None  # the ranks are on one host
        return segment

    def _share(self, nbytes: int) -> DeviceWindow:
        group = self._host.group
        if group.size == 1:
            return share_locally(1, nbytes, self.device)
        return share(self._host.exchange, group.rank, group.size, nbytes, self.device, self.path.kind)

    def run(self, request: CallRequest) -> None:
        """Enqueue a call in its stream.

        Raises:
            MismatchError: a peer's call does not match. CommunicatorError and subclasses: an earlier call failed.
        """
        self.check()
        if self._freed:
            raise CommunicatorError("the communicator was freed")
        if is_waiting():
            free_closed()
        s = sign(request)
        negotiates = self._windows > 0 and s.row.windows
        packets = self._planner.takes_packets(s)
        placement = self._place(request) if negotiates and not packets else 0
        planned = self._planner.plan(s, placement, negotiates and not packets)
        self.note(planned.at(request.step) if s.row.weighted else planned)
        x, out = request.x, request.out
        addresses = (x.address if x is not None else 0, out.address if out is not None else 0)
        copies = []
        if placement and s.row.single_buffer:
            if self._rank == s.root and x is not None and out is not None and x.address != out.address:
                copies.append((out.address, x.address, out.nbytes))
            addresses = (addresses[1], addresses[1])
        timeout = _core.timeout_of(request.timeout)
        self._team.run(planned.plan, [addresses], request.stream, s.max_channels, timeout, copies)

    def note(self, planned: Planned) -> None:
        """Record this rank's next call, and compare it with the peers' that have reached it.

        Raises:
            MismatchError: with both calls.
        """
        if self._works():
            other = self._ledger.note(planned.digest, planned.text)
            if other >= 0:
                theirs = self._ledger.counterpart(other)
                text = f"rank {self._rank} calls {planned.text}, rank {other} calls {theirs}"
                self._host.fail(MismatchError(text), other)
                self._team.abort()
                self._host.check()

    def check(self) -> None:
        """Raise the error, if any, of calls that are in progress or have completed."""
        if self._works() and not self._host.team.poisoned:
            self._report_fault()
        self._host.check()

    def close(self) -> None:
        """The communicator was freed: finish calls in progress and release the memory."""
        if self._works():
            self._team.wait()  # remaining windows keep the team alive
            self._release()

    def __del__(self) -> None:
        if hasattr(self, "_closed") and not self._freed:
            self._team.end()
            self._release()

    def _release(self) -> None:
        with self._freeing:
            self._freed = True
            del self._planner, self._team
        close_when_idle(functools.partial(_close_mailboxes, self._closed, self._mailboxes.memory, self._rank))

    def abort(self) -> None:
        with self._freeing:
            if self._works():
                self._team.abort()

    def give_up(self, error: Error) -> None:
        self._host.fail(error, self._rank)

    def look(self) -> None:
        """Called by the watcher: report a kernel's fault to all ranks."""
        with self._freeing:
            if self._works():
                self._report_fault()

    def _report_fault(self) -> None:
        """Poison the communicator if a kernel has aborted: every rank's next call raises."""
        host, team, ledger = self._host, self._team, self._ledger
        found = team.fault()
        if found is None or host.team.poisoned:
            return
        kind, rank, peer, _, expected, seen, _ = found
        if kind == "mismatch":
            mine = ledger.text(rank, expected) or "another call"
            theirs = ledger.text(peer, seen) or "another call"
            host.fail(MismatchError(f"rank {rank} calls {mine}, rank {peer} calls {theirs}"), peer)
        elif kind == "dropped":
            call = ledger.text(rank, expected) or "a call"
            text = f"rank {peer} uses a window in {call} whose array rank {rank} has dropped"
            host.fail(MismatchError(f"{text}: keep the arrays of comm.empty on all ranks while one uses them"), peer)
        elif kind == "timeout":
            made = [ledger.calls(r) for r in range(host.group.size)]
            # The rank with the fewest calls is the cause, even if the kernel waited for another.
            if min(made) < made[rank]:
                peer = made.index(min(made))
            host.fail(TimeoutError(f"rank {rank} has waited on its GPU for rank {peer} until the deadline"), peer)
        team.abort()

    def locate(self, address: int, nbytes: int) -> tuple[int, int] | None:
        """The window that contains the memory, and the offset in it; None if none does."""
        found: tuple[int, int] | None = self._team.locate(0, address, nbytes) if self._works() else None
        return found

    def _works(self) -> bool:
        return self.path.kind != HOST and not self._freed

    def _place(self, request: CallRequest) -> int:
        x, out = request.x, request.out
        shared = self._has_mapped(x), self._has_mapped(out)
        return _core.placement(request.collective, for_core(x), for_core(out), *shared)

    def _has_mapped(self, array: View | None) -> bool:
        return array is not None and self._team.locate(0, array.address, array.nbytes) is not None

    def empty(self, number: int, shape: tuple[int, ...], dtype: str) -> Any:
        """Collective: a DeviceArray in a window; in plain device memory if arrays are staged through the host."""
        if self.path.kind == HOST:
            return allocate(shape, dtype, self.device)
        cuda = load()
        if is_waiting():
            self._team.wait()
        free_closed()
        window = self._share(max(math.prod(shape) * ITEMSIZE[dtype], 16))
        owner = _Window(self._team, self._closed, number, window, self._rank)
        self._windows += 1
        return cuda.DeviceArray(owner, window.bases[self._rank], shape, dtype, self.device)


class _Window:
    """Keeps a window's memory alive for the arrays in it."""

    def __init__(self, team: Any, closed: ClosedWindows, number: int, window: DeviceWindow, rank: int) -> None:
        self._team, self._closed, self._number = team, closed, number
        self._own = window.memory[rank]
        self._peers = window.memory
        team.add_window(number, list(window.bases), window.nbytes)

    def __del__(self) -> None:
        close_when_idle(functools.partial(_close, self._team, self._closed, self._number, self._own, self._peers))


def _close_mailboxes(closed: ClosedWindows, memory: list[Any], rank: int) -> None:
    own = memory[rank]
    memory.clear()
    closed.close(0, own, MAILBOXES)


def _close(team: Any, closed: ClosedWindows, number: int, own: Any, peers: list[Any]) -> None:
    team.remove_window(number)  # waits for calls that use it
    peers.clear()
    closed.close(number, own)


def _agree_on_channels(gpus: list[str], most: list[list[int]]) -> int:
    """Channels that all ranks can have at once, even if several share a GPU: under MPS their kernels run concurrently,
    and one that waits for a block that cannot be scheduled would wait forever. Without MPS they take turns.

    Args:
        gpus: of each rank. most: for each rank, the blocks it can have if 1, 2, ... ranks share its GPU.
    """
    return min(
        max(each[gpus.count(gpu) - 1], 1) if each[min(1, gpus.count(gpu) - 1)] else 0
        for gpu, each in zip(gpus, most, strict=True)
    )

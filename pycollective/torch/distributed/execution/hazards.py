"""Calls that access the same memory are executed in the order in which they were made, wherever they are executed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pycollective.torch.distributed.execution.job_queue import JobQueue
from pycollective.torch.distributed.execution.streams import DeviceWork
from pycollective.torch.distributed.execution.work import PlainWork, Work
from pycollective.torch.distributed.tensors import Span, overlap, span

DIRECT, JOBS, ENGINE, STREAM = "direct", "jobs", "engine", "stream"
"""Where a call is executed: by the communicator, in order; by the job queue, in order; by the engine, in any order; in
a stream, where waiting does not block the host."""
_IN_ORDER = frozenset((DIRECT, JOBS))
AnyWork = Work | DeviceWork
_ENOUGH = 64
"""Calls that are recorded before those that have completed are looked for."""


_Pending = tuple[AnyWork, str, list[Span] | int]
"""A call's work, its place and the memory that it touches; only its address, if it is that of the work's output."""


class IssueOrder:
    """A process group's asynchronous calls that may not have completed. For the thread that makes the calls."""

    def __init__(self) -> None:
        self.pending: list[_Pending] = []
        self._only_direct = True  # pending calls are direct ones that copy nothing
        self._enough = _ENOUGH

    def settle(self, touched: Sequence[Any], place: str, copies: bool) -> None:
        """Before a call on tensors `touched`: wait for pending calls that it must not overtake.

        Args:
            touched: the tensors that the call reads and writes.
            place: where it will be executed.
            copies: whether it copies its inputs immediately.
        """
        direct = place == DIRECT and not copies and self._only_direct
        if self.admits_direct() if direct else self.is_clear():
            return
        memory = [span(x) for x in touched]
        for work, its_place, its_memory in self.pending:
            in_turn = its_place == place and place in _IN_ORDER and not copies and not work.copies
            if not in_turn and overlap(_spans(work, its_memory), memory):
                with contextlib.suppress(RuntimeError):  # the call's own Work reports its error
                    work.wait()

    def is_clear(self) -> bool:
        """Return whether all calls have completed."""
        self.pending = [one for one in self.pending if not one[0].is_completed()]
        self._only_direct = all(place == DIRECT and not work.copies for work, place, _ in self.pending)
        self._enough = max(_ENOUGH, 2 * len(self.pending))
        return not self.pending

    def admits_direct(self) -> bool:
        """Return whether a direct call that copies nothing overtakes none of the pending calls; there are some."""
        if not self._only_direct:
            return self.is_clear()
        if self.pending[-1][0].waited_for:  # then those before it have completed, too
            self.pending.clear()
        elif len(self.pending) >= self._enough:
            self.is_clear()
        return True

    def note(self, work: AnyWork, touched: Sequence[Any], place: str) -> AnyWork:
        """Record a call that has been started; returns its Work."""
        self.pending.append((work, place, [span(x) for x in touched]))
        self._only_direct = self._only_direct and place == DIRECT and not work.copies
        return work

    def note_plain(self, call: Any, x: Any, jobs: JobQueue) -> PlainWork:
        """Note a call of the core in progress on one contiguous tensor, on the latency path."""
        work: PlainWork = PlainWork()
        work.call, work.outputs, work.jobs = call, [x], jobs
        self.pending.append((work, DIRECT, x.data_ptr()))
        return work


def _spans(work: AnyWork, memory: list[Span] | int) -> list[Span]:
    if not isinstance(memory, int):
        return memory
    (x,) = work.outputs
    return [(memory, memory + x.numel() * x.element_size())]

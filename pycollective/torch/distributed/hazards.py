"""Calls that access the same memory are executed in the order in which they were made, wherever they are executed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycollective import _core
from pycollective.dtypes import DTYPES
from pycollective.torch.distributed.streams import StreamWork
from pycollective.torch.distributed.tensors import Span, overlap, span
from pycollective.torch.distributed.work import Work

DIRECT, JOBS, ENGINE, STREAM = "direct", "jobs", "engine", "stream"
"""Where a call is executed: by the communicator, in order; by the job queue, in order; by the engine, in any order; in
a stream, where waiting does not block the host."""
_IN_ORDER = frozenset((DIRECT, JOBS))
AnyWork = Work | StreamWork


@dataclass(slots=True)
class _Pending:
    work: AnyWork
    place: str
    memory: list[Span] | _core.HostBuffer
    """A buffer is flat, and keeps its memory."""

    def spans(self) -> list[Span]:
        if isinstance(self.memory, list):
            return self.memory
        start = self.memory.address
        return [(start, start + self.memory.count * DTYPES[self.memory.dtype].itemsize)]


class Order:
    """A process group's asynchronous calls that may not have completed. For the thread that makes the calls."""

    def __init__(self) -> None:
        self.pending: list[_Pending] = []

    def settle(self, touched: Sequence[Any], place: str, copies: bool) -> None:
        """Before a call on tensors `touched`: wait for pending calls that it must not overtake.

        Args:
            touched: the tensors that the call reads and writes.
            place: where it will be executed.
            copies: whether it copies its inputs immediately.
        """
        if self.is_clear():
            return
        memory = [span(x) for x in touched]
        for one in self.pending:
            in_turn = one.place == place and place in _IN_ORDER and not copies and not one.work.copies
            if not in_turn and overlap(one.spans(), memory):
                with contextlib.suppress(RuntimeError):  # the call's own Work reports its error
                    one.work.wait()

    def is_clear(self) -> bool:
        """Whether all calls have completed."""
        self.pending = [one for one in self.pending if not one.work.is_completed()]
        return not self.pending

    def note(self, work: AnyWork, touched: Sequence[Any], place: str) -> AnyWork:
        """Record a call that has been started; returns its Work."""
        self.pending.append(_Pending(work, place, [span(x) for x in touched]))
        return work

    def note_buffer(self, work: AnyWork, buffer: _core.HostBuffer, place: str) -> AnyWork:
        """The same for a call that touches only a buffer."""
        self.pending.append(_Pending(work, place, buffer))
        return work

"""Calls that touch the same memory are done in the order in which they were made, wherever they are done."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pycollective.torch.distributed.tensors import Span, overlap, span
from pycollective.torch.distributed.work import Work

DIRECT, LANE, ENGINE = "direct", "lane", "engine"
"""Where a call is done: by the communicator, one after the other; by the lane, likewise; by the engine, in any."""


@dataclass(slots=True)
class _Flying:
    work: Work
    place: str
    memory: list[Span]


class Order:
    """A process group's asynchronous calls that may not be through. For the thread that makes the calls."""

    def __init__(self) -> None:
        self._flying: list[_Flying] = []

    def settle(self, touched: Sequence[Any], place: str, copies: bool) -> None:
        """Before a call on tensors `touched`: wait for those under way that it must not overtake.

        Args:
            touched: what the call reads and writes.
            place: where it is going to be done.
            copies: whether it copies what it reads already now.
        """
        if not self._flying:
            return
        self._flying = [one for one in self._flying if not one.work.is_completed()]
        memory = [span(x) for x in touched]
        for one in self._flying:
            in_turn = one.place == place != ENGINE and not copies and not one.work.copies
            if not in_turn and overlap(one.memory, memory):
                with contextlib.suppress(RuntimeError):  # what went wrong is for its own Work to tell
                    one.work.wait()

    def note(self, work: Work, touched: Sequence[Any], place: str) -> Work:
        """A call that is under way from now on; returns its Work."""
        self._flying.append(_Flying(work, place, [span(x) for x in touched]))
        return work

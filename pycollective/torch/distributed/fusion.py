"""A process group's engine, where calls go if its options say so."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.torch.distributed.tensors import Span, overlap, span
from pycollective.torch.distributed.work import EngineFlight, Flights


class Fusion:
    """Args: comm: of the process group, from which the engine is made at its first use (collective, as all calls are).

    Attributes:
        flying: operations that were not through when last looked at, and the memory that they write.
    """

    KINDS = frozenset(("allreduce", "broadcast", "barrier"))

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._engine: Any = None
        self._number = 0
        self.flying: list[tuple[EngineFlight, Span]] = []

    def start(
        self, kind: str, arrays: Sequence[tuple[Any, Any]], op: str, root: int, scale: tuple[float, float] | None
    ) -> Flights:
        """Submit operations on tensors (input, output), which become ready together.

        They are named by their number: torch's ranks make the same calls in the same order.
        """
        from pycollective.engine import Engine, Item

        if self._engine is None:
            self._engine = Engine(self._comm)
        before, after = scale or (1.0, 1.0)
        items, memory = [], []
        for data, into in arrays:
            self._number += 1
            name = f"{kind}.{self._number}"
            if kind == "barrier":
                data = into = None
            items.append(Item(kind, name, data, into, op, root, None, before, after))
            memory.append(span(into))
        self._settle_for(memory)
        flights = [EngineFlight(work) for work in self._engine.submit(items)]
        self.flying += zip(flights, memory, strict=True)
        return Flights(flights)

    def _settle_for(self, memory: Sequence[Span]) -> None:
        """Wait for what writes to the same memory: the engine may run what it has in any order, or at once."""
        self.flying = [(flight, written) for flight, written in self.flying if not flight.test()]
        if overlap((written for _, written in self.flying), memory):
            self.settle()

    def settle(self) -> None:
        """Wait until everything submitted is through; what went wrong is for its own Work to tell."""
        for flight, _ in self.flying:
            with contextlib.suppress(RuntimeError):
                flight.wait()
        self.flying = []

    def close(self) -> None:
        """Nothing more is submitted."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

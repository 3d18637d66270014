"""A process group's engine: where several tensors go at once, and everything if the options say so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.torch.distributed.work import EngineFlight, Flights


class Fusion:
    """Args: comm: of the process group, from which the engine is made at its first use (collective, as all calls are).

    Attributes:
        flying: operations that were not through when last looked at.
    """

    KINDS = frozenset(("allreduce", "broadcast", "barrier"))

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._engine: Any = None
        self._number = 0
        self.flying: list[EngineFlight] = []

    def start(
        self, kind: str, arrays: Sequence[tuple[Any, Any]], op: str, root: int, scale: tuple[float, float] | None
    ) -> Flights:
        """Submit operations on (input, output) arrays, which become ready together.

        They are named by their number: torch's ranks make the same calls in the same order.
        """
        from pycollective.engine import Engine, Item

        if self._engine is None:
            self._engine = Engine(self._comm)
        before, after = scale or (1.0, 1.0)
        items = []
        for data, into in arrays:
            self._number += 1
            name = f"{kind}.{self._number}"
            if kind == "barrier":
                items.append(Item("barrier", name))
            else:
                items.append(Item(kind, name, data, into, op, root, None, before, after))
        flights = [EngineFlight(work) for work in self._engine.submit(items)]
        self.flying = [flight for flight in self.flying if not flight.test()] + flights
        return Flights(flights)

    def settle(self) -> None:
        """Wait until everything submitted is through; what went wrong is for its own Work to tell."""
        for flight in self.flying:
            while not flight.test():
                _wait_quietly(flight)
        self.flying = []

    def close(self) -> None:
        """Collective."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def _wait_quietly(flight: EngineFlight) -> None:
    import contextlib

    with contextlib.suppress(RuntimeError):
        flight.wait(None)

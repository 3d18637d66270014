"""A process group's engine, used if its options request it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pycollective.comm.communicator import Communicator
from pycollective.torch.distributed.execution.work import Several


class Fusion:
    """Args: comm: of the process group; the engine is created on first use (collective, like all calls)."""

    KINDS = frozenset(("allreduce", "broadcast", "barrier"))

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._engine: Any = None
        self._number = 0

    def start(
        self, kind: str, arrays: Sequence[tuple[Any, Any]], op: str, root: int, scale: tuple[float, float] | None
    ) -> Several:
        """Submit operations on tensors (input, output), which become ready together.

        They are named by number: all ranks make the same calls in the same order.
        """
        from pycollective.engine import Engine, Item

        if self._engine is None:
            self._engine = Engine(self._comm)
        before, after = scale or (1.0, 1.0)
        items = []
        for data, into in arrays:
            self._number += 1
            x, out = (None, None) if kind == "barrier" else (data, into)
            items.append(Item(kind, f"{kind}.{self._number}", x, out, op, root, None, before, after))
        return Several(self._engine.submit(items))

    def close(self) -> None:
        """Accept no more operations."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

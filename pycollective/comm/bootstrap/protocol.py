"""The exchange from which a communicator is built: what every way to find the other ranks offers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Bootstrap(Protocol):
    """The exchange from which a communicator is built."""

    rank: int
    size: int
    kind: str
    """`pycollective`, `mpi`, `horovod`, `torchrun`, `slurm` or `alone`."""

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """Collective: every rank's `data` in rank order, once all have called; `timeout` in seconds.

        Raises BootstrapError that names the ranks missing at the deadline.
        """
        ...

    def close(self) -> None:
        """Close connections; may be called twice."""
        ...


class Alone:
    """A world of one."""

    rank = 0
    size = 1
    kind = "alone"

    def allgather(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        return [data]

    def close(self) -> None:
        pass

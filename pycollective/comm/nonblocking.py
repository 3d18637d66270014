"""The nonblocking forms of a communicator's calls: the same arguments, a Handle at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pycollective.comm import arrays, calls
from pycollective.comm.handle import Handle
from pycollective.comm.starting import Starting

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pycollective.comm.options import Options


class Nonblocking(Starting):
    """What a communicator starts and does not wait for."""

    def iallreduce(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `allreduce`."""
        return self._start(calls.allreduce(x, out), options)

    def ireduce(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `reduce`."""
        return self._start(calls.reduce(x, root, out, self.rank), options)

    def ireduce_scatter(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `reduce_scatter`."""
        return self._start(calls.reduce_scatter(x, out, self.rank, self.size), options)

    def ibroadcast(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `broadcast`."""
        return self._start(calls.broadcast(x, root, out), options)

    def iallgather(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `allgather`."""
        shape = arrays.shape_of(x)
        return self._start(calls.allgather(x, out, (shape[0] if shape else 1,) * self.size), options)

    def iallgatherv(self, x: Any, counts: Sequence[int], out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `allgatherv`; counts must be known."""
        return self._start(calls.allgatherv(x, out, counts, self.rank, self.size), options)

    def igather(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `gather`."""
        return self._start(calls.gather(x, root, out, self.rank, self.size), options)

    def iscatter(self, x: Any, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `scatter`."""
        return self._start(calls.scatter(x, root, out, self.rank, self.size), options)

    def ialltoall(self, x: Any, out: Any = None, **options: Unpack[Options]) -> Handle:
        """Nonblocking `alltoall`."""
        return self._start(calls.alltoall(x, out, self.rank, self.size), options)

    def ialltoallv(
        self,
        x: Any,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        **options: Unpack[Options],
    ) -> Handle:
        """Nonblocking `alltoallv`; only the exchange of the counts, at its start, blocks."""
        return self._start(self._alltoallv(x, send_counts, recv_counts, out, options), options)

    def ibarrier(self, **options: Unpack[Options]) -> Handle:
        """Nonblocking `barrier`."""
        return self._start(calls.barrier(), options)

    def isend(self, x: Any, dest: int, *, timeout: float | None = None) -> Handle:
        """Nonblocking `send`."""
        return Handle(self._transfer(self.rank, dest, arrays.message(x), None, timeout, True), None)

    def irecv(self, out: Any, source: int, *, timeout: float | None = None) -> Handle:
        """Nonblocking `recv`."""
        if arrays.on_device(out):
            from pycollective.comm.cuda.calls import Landing

            landing = Landing(out)
            return Handle(landing.behind(self._transfer(source, self.rank, None, landing.copy, timeout, True)), out)
        return Handle(self._transfer(source, self.rank, None, arrays.writable(out), timeout, True), out)

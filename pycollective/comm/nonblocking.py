"""The nonblocking forms of a communicator's calls: the same arguments, a Handle at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from pycollective.comm import arrays, calls
from pycollective.comm.blocking import Blocking
from pycollective.comm.described import nonblocking
from pycollective.comm.handle import Handle
from pycollective.comm.starting import Starting

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from pycollective.comm.options import Moving, Options
    from pycollective.typing import A, ArrayLike, Out


@nonblocking(Blocking)
class Nonblocking(Starting):
    """What a communicator starts and does not wait for."""

    @overload
    def iallreduce(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def iallreduce(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def iallreduce(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def iallreduce(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `allreduce`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.allreduce(x, out), options)

    @overload
    def ireduce(self, x: A, root: int = 0, out: None = None, **options: Unpack[Options]) -> Handle[A | None]: ...
    @overload
    def ireduce(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Options]
    ) -> Handle[NDArray[Any] | None]: ...
    @overload
    def ireduce(
        self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Options]
    ) -> Handle[Out | None]: ...
    def ireduce(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `reduce`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.reduce(x, root, out, self.rank), options)

    @overload
    def ireduce_scatter(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def ireduce_scatter(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def ireduce_scatter(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def ireduce_scatter(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `reduce_scatter`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.reduce_scatter(x, out, self.rank, self.size), options)

    @overload
    def iscan(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def iscan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def iscan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def iscan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `scan`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.elementwise("scan", x, out), options)

    @overload
    def iexscan(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def iexscan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def iexscan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def iexscan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `exscan`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.elementwise("exscan", x, out), options)

    @overload
    def ibroadcast(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def ibroadcast(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def ibroadcast(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Handle[Out]: ...
    def ibroadcast(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `broadcast`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.broadcast(x, root, out), options)

    @overload
    def iallgather(self, x: A, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def iallgather(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> Handle[NDArray[Any]]: ...
    @overload
    def iallgather(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Handle[Out]: ...
    def iallgather(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `allgather`: same arguments; a Handle at once, whose result() is what it returns."""
        shape = arrays.shape_of(x)
        return self._start(calls.allgather(x, out, (shape[0] if shape else 1,) * self.size), options)

    @overload
    def iallgatherv(self, x: A, counts: Sequence[int], out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def iallgatherv(
        self, x: ArrayLike, counts: Sequence[int], out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def iallgatherv(self, x: ArrayLike, counts: Sequence[int], out: Out, **options: Unpack[Moving]) -> Handle[Out]: ...
    def iallgatherv(
        self, x: ArrayLike, counts: Sequence[int], out: Any = None, **options: Unpack[Moving]
    ) -> Handle[Any]:
        """Nonblocking `allgatherv`: same arguments, of which counts must be known; a Handle at once."""
        return self._start(calls.allgatherv(x, out, counts, self.rank, self.size), options)

    @overload
    def igather(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> Handle[A | None]: ...
    @overload
    def igather(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any] | None]: ...
    @overload
    def igather(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Handle[Out | None]: ...
    def igather(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `gather`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.gather(x, root, out, self.rank, self.size), options)

    @overload
    def iscatter(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def iscatter(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def iscatter(
        self, x: ArrayLike | None, root: int = 0, out: Out = ..., **options: Unpack[Moving]
    ) -> Handle[Out]: ...
    def iscatter(self, x: ArrayLike | None, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `scatter`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.scatter(x, root, out, self.rank, self.size), options)

    @overload
    def ialltoall(self, x: A, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def ialltoall(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> Handle[NDArray[Any]]: ...
    @overload
    def ialltoall(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Handle[Out]: ...
    def ialltoall(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `alltoall`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.alltoall(x, out, self.rank, self.size), options)

    @overload
    def ialltoallv(
        self,
        x: A,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: None = None,
        **options: Unpack[Moving],
    ) -> Handle[A]: ...
    @overload
    def ialltoallv(
        self,
        x: ArrayLike,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: None = None,
        **options: Unpack[Moving],
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def ialltoallv(
        self,
        x: ArrayLike,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: Out = ...,
        **options: Unpack[Moving],
    ) -> Handle[Out]: ...
    def ialltoallv(
        self,
        x: ArrayLike,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        **options: Unpack[Moving],
    ) -> Handle[Any]:
        """Nonblocking `alltoallv`: same arguments; a Handle once the counts are exchanged."""
        return self._start(self._alltoallv(x, send_counts, recv_counts, out, options), options)

    def ibarrier(self, **options: Unpack[Moving]) -> Handle[None]:
        """Nonblocking `barrier`: same arguments; a Handle at once, whose result() is what it returns."""
        return self._start(calls.barrier(), options)

    def isend(self, x: ArrayLike, dest: int, *, timeout: float | None = None) -> Handle[None]:
        """Nonblocking `send`: same arguments; a Handle at once, whose result() is what it returns."""
        return Handle(self._transfer(self.rank, dest, arrays.message(x), None, timeout, True), None)

    def irecv(self, out: Out, source: int, *, timeout: float | None = None) -> Handle[Out]:
        """Nonblocking `recv`: same arguments; a Handle at once, whose result() is what it returns."""
        if arrays.on_device(out):
            from pycollective.comm.cuda.calls import Landing

            landing = Landing(out)
            return Handle(landing.behind(self._transfer(source, self.rank, None, landing.copy, timeout, True)), out)
        return Handle(self._transfer(source, self.rank, None, arrays.writable(out), timeout, True), out)

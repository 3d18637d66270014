"""Nonblocking forms of a communicator's calls: generated from collectives.py by tools/nonblocking.py."""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from pycollective.comm.collectives import Collectives
from pycollective.comm.described import nonblocking
from pycollective.comm.handle import Handle

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from pycollective.comm.arguments.options import Calling, Moving, Options
    from pycollective.schedule.mixing import Graph
    from pycollective.typing import A, ArrayLike, Out


@nonblocking(Collectives)
class Nonblocking(Collectives):
    """What a communicator starts and does not wait for."""

    @overload
    def iallreduce(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def iallreduce(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def iallreduce(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def iallreduce(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `allreduce`: same arguments; a Handle at once, for what it returns."""

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
        """Nonblocking `reduce`: same arguments; a Handle at once, for what it returns."""

    @overload
    def ireduce_scatter(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def ireduce_scatter(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def ireduce_scatter(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def ireduce_scatter(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `reduce_scatter`: same arguments; a Handle at once, for what it returns."""

    @overload
    def iscan(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def iscan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def iscan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def iscan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `scan`: same arguments; a Handle at once, for what it returns."""

    @overload
    def iexscan(self, x: A, out: None = None, **options: Unpack[Options]) -> Handle[A]: ...
    @overload
    def iexscan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> Handle[NDArray[Any]]: ...
    @overload
    def iexscan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Handle[Out]: ...
    def iexscan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Handle[Any]:
        """Nonblocking `exscan`: same arguments; a Handle at once, for what it returns."""

    @overload
    def imix(
        self,
        x: A,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: None = None,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> Handle[A]: ...
    @overload
    def imix(
        self,
        x: ArrayLike,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: None = None,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def imix(
        self,
        x: ArrayLike,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: Out = ...,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> Handle[Out]: ...
    def imix(
        self,
        x: ArrayLike,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: Any = None,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> Handle[Any]:
        """Nonblocking `mix`: same arguments; a Handle at once, for what it returns."""

    @overload
    def ibroadcast(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def ibroadcast(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def ibroadcast(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Handle[Out]: ...
    def ibroadcast(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `broadcast`: same arguments; a Handle at once, for what it returns."""

    @overload
    def iallgather(self, x: A, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def iallgather(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> Handle[NDArray[Any]]: ...
    @overload
    def iallgather(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Handle[Out]: ...
    def iallgather(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `allgather`: same arguments; a Handle at once, for what it returns."""

    @overload
    def iallgatherv(
        self, x: A, counts: Sequence[int] | None = None, out: None = None, **options: Unpack[Moving]
    ) -> Handle[A]: ...
    @overload
    def iallgatherv(
        self, x: ArrayLike, counts: Sequence[int] | None = None, out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any]]: ...
    @overload
    def iallgatherv(
        self, x: ArrayLike, counts: Sequence[int] | None = None, out: Out = ..., **options: Unpack[Moving]
    ) -> Handle[Out]: ...
    def iallgatherv(
        self, x: ArrayLike, counts: Sequence[int] | None = None, out: Any = None, **options: Unpack[Moving]
    ) -> Handle[Any]:
        """Nonblocking `allgatherv`: same arguments; a Handle after an exchange of counts, for what it returns."""

    @overload
    def igather(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> Handle[A | None]: ...
    @overload
    def igather(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]
    ) -> Handle[NDArray[Any] | None]: ...
    @overload
    def igather(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Handle[Out | None]: ...
    def igather(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `gather`: same arguments; a Handle at once, for what it returns."""

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
        """Nonblocking `scatter`: same arguments; a Handle at once, for what it returns."""

    @overload
    def ialltoall(self, x: A, out: None = None, **options: Unpack[Moving]) -> Handle[A]: ...
    @overload
    def ialltoall(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> Handle[NDArray[Any]]: ...
    @overload
    def ialltoall(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Handle[Out]: ...
    def ialltoall(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Handle[Any]:
        """Nonblocking `alltoall`: same arguments; a Handle at once, for what it returns."""

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
        """Nonblocking `alltoallv`: same arguments; a Handle after an exchange of counts, for what it returns."""

    def ibarrier(self, **options: Unpack[Moving]) -> Handle[None]:
        """Nonblocking `barrier`: same arguments; a Handle at once, for what it returns."""

    def isend(self, x: ArrayLike, dest: int, *, timeout: float | None = None) -> Handle[None]:
        """Nonblocking `send`: same arguments; a Handle at once, for what it returns."""

    def irecv(self, out: Out, source: int, *, timeout: float | None = None) -> Handle[Out]:
        """Nonblocking `recv`: same arguments; a Handle at once, for what it returns."""

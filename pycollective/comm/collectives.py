"""A communicator's collectives and messages, in their blocking form.

Here are their signatures and documentation, and csrc/bindings/calls/methods.cpp makes the calls.
"""
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from pycollective import checks
from pycollective.comm.backend import Backend
from pycollective.comm.described import described
from pycollective.comm.handle import Handle
from pycollective.comm.host.team import HostTeam
from pycollective.comm.request import CallRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from pycollective.comm.arguments.options import Calling, Moving, Options
    from pycollective.comm.cuda.side import GpuSide
    from pycollective.schedule.mixing import Graph
    from pycollective.typing import A, ArrayLike, Out


@described
class Collectives:
    """The blocking calls of a communicator: they return when this rank's part is done."""

    backend: HostTeam
    gpu: GpuSide | None

    def call(self, made: CallRequest) -> Any:
        """Execute a request, as the collectives do.

        Args:
            made: a request, as those of GPU arrays.

        Returns:
            its `result`.

        Raises:
            TypeError: not a request.
            Exception: as every collective, see Communicator.
        """
        if type(made) is not CallRequest:
            checks.refuse_type("made", "a CallRequest", made)
        try:
            self._backend(made).run(made)
        except Exception as error:
            name_call(error, made.name)
            raise
        if made.received is not None:
            made.received.finish()
        return made.result

    def start(self, made: CallRequest) -> Handle[Any]:
        """Start a request, as the nonblocking forms do.

        Args:
            made: as for `call`.

        Returns:
            a Handle for its `result`.

        Raises:
            TypeError: not a request.
            Exception: as every collective, see Communicator.
        """
        if type(made) is not CallRequest:
            checks.refuse_type("made", "a CallRequest", made)
        try:
            work = self._backend(made).start(made)
        except Exception as error:
            name_call(error, made.name)
            raise
        return Handle(work if made.received is None else made.received.behind(work), made.result)

    def _backend(self, made: CallRequest) -> Backend:
        if made.device is None:
            return self.backend
        from pycollective.comm.cuda.signature import check

        check(made, self.backend.group.rank, self.backend.group.size)
        return self.gpu_side(made.device)

    def gpu_side(self, device: int) -> GpuSide:
        """The backend for calls on GPU arrays; created by the first of them, which is collective.

        Args:
            device: number of this rank's GPU.

        Returns:
            the GPU side.

        Raises:
            CommunicatorError: there is no GPU path on this system; states why.
        """
        if self.gpu is None:
            from pycollective.comm.cuda.side import GpuSide

            self.gpu = GpuSide(self.backend, device)
        return self.gpu

    # -- reductions ------------------------------------------------------------------------------------------------

    @overload
    def allreduce(self, x: A, out: None = None, **options: Unpack[Options]) -> A: ...
    @overload
    def allreduce(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> NDArray[Any]: ...
    @overload
    def allreduce(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Out: ...
    def allreduce(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Any:
        """Every rank gets the reduction of all ranks' x, element by element.

        Args:
            x: array of any shape, the same shape and dtype on every rank.
            out: receives the result, of x's size and dtype; `out=x` works in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library, shape and dtype.
        """

    @overload
    def reduce(self, x: A, root: int = 0, out: None = None, **options: Unpack[Options]) -> A | None: ...
    @overload
    def reduce(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Options]
    ) -> NDArray[Any] | None: ...
    @overload
    def reduce(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Options]) -> Out | None: ...
    def reduce(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Options]) -> Any:
        """The root gets the reduction of all ranks' x, element by element.

        Args:
            x: array of any shape, the same shape and dtype on every rank.
            root: the rank that gets the result.
            out: on the root, receives the result; of x's size and dtype. Not used on the others.

        Returns:
            `out` on the root, or a new array of x's library, shape and dtype; None on the others.
        """

    @overload
    def reduce_scatter(self, x: A, out: None = None, **options: Unpack[Options]) -> A: ...
    @overload
    def reduce_scatter(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> NDArray[Any]: ...
    @overload
    def reduce_scatter(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Out: ...
    def reduce_scatter(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Any:
        """Each rank gets its rows of the reduction: x's first axis is cut as numpy.array_split cuts it.

        Args:
            x: array of shape (rows, ...), the same on every rank.
            out: array of rank r's share: rows // size rows, one more for the first rows % size ranks.

        Returns:
            `out`, or a new array of x's library with this rank's rows.
        """

    @overload
    def scan(self, x: A, out: None = None, **options: Unpack[Options]) -> A: ...
    @overload
    def scan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> NDArray[Any]: ...
    @overload
    def scan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Out: ...
    def scan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Any:
        """Inclusive prefix reduction: rank r gets the reduction of the x of ranks 0 to r, element by element.

        Args:
            x: array of any shape, the same shape and dtype on every rank.
            out: receives the result, of x's size and dtype; `out=x` works in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library, shape and dtype.

        Raises:
            ValueError: op is avg, since ranks reduce different numbers of arrays.
        """

    @overload
    def exscan(self, x: A, out: None = None, **options: Unpack[Options]) -> A: ...
    @overload
    def exscan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> NDArray[Any]: ...
    @overload
    def exscan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Out: ...
    def exscan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Any:
        """Exclusive prefix reduction: rank r gets the reduction of the x of ranks 0 to r - 1, element by element.

        Rank 0 gets nothing: its `out` is left unchanged; a new array is all zeros.

        Args:
            x: array of any shape, the same shape and dtype on every rank.
            out: receives the result, of x's size and dtype; `out=x` works in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library, shape and dtype.

        Raises:
            ValueError: op is avg, since ranks reduce different numbers of arrays.
        """

    @overload
    def mix(
        self,
        x: A,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: None = None,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> A: ...
    @overload
    def mix(
        self,
        x: ArrayLike,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: None = None,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> NDArray[Any]: ...
    @overload
    def mix(
        self,
        x: ArrayLike,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: Out = ...,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> Out: ...
    def mix(
        self,
        x: ArrayLike,
        graph: Graph | Mapping[int, float],
        step: int = 0,
        out: Any = None,
        *,
        normalised: bool = True,
        **options: Unpack[Calling],
    ) -> Any:
        """Weighted average with neighbours (gossip): rank r gets a weighted sum of x of the ranks it reads.

        Sources are added in ascending rank; products and sums are computed in float32, or in float64 for float64, and
        rounded once. Only the ranks that read each other, and each rank and the next, wait for each other.

        Args:
            x: array of a floating-point type and any shape, the same shape and dtype on every rank.
            graph: a function graph(rank, size, step) that returns {source: weight}, the rank's own entry included, and
                is the same on all ranks (see pycollective.graphs); or such a mapping for this rank alone, which costs
                an exchange of all ranks' mappings; or a topology with programs of mix.
            step: passed to the graph; the same on all ranks, from 0.
            out: receives the result, of x's size and dtype; may be x. Default: a new array.
            normalised: the weights of every rank must sum to 1 (within 1e-6).

        Returns:
            `out`, or a new array of x's library, shape and dtype.

        Raises:
            TypeError: x is not of a floating-point type, or the graph's result not a mapping of numbers.
            ValueError: a source is not a rank, a rank's own entry is missing, or a weight or their sum is wrong.
            MismatchError: the ranks' graphs, at any rank, or their steps differ.
            CommunicatorError: the ranks are on several hosts.
        """

    # -- moving data -----------------------------------------------------------------------------------------------

    @overload
    def broadcast(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> A: ...
    @overload
    def broadcast(self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]) -> NDArray[Any]: ...
    @overload
    def broadcast(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Out: ...
    def broadcast(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Any:
        """Every rank gets the root's x.

        Args:
            x: array of any shape, the same size and dtype on every rank; only the root's content is read.
            root: the rank that sends.
            out: receives the result, of x's size and dtype; `out=x` fills x in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library and shape.
        """

    @overload
    def allgather(self, x: A, out: None = None, **options: Unpack[Moving]) -> A: ...
    @overload
    def allgather(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> NDArray[Any]: ...
    @overload
    def allgather(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Out: ...
    def allgather(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Any:
        """Every rank gets all ranks' x, joined along the first axis in rank order.

        Args:
            x: array of shape (rows, ...), the same on every rank; 0-d counts as one row.
            out: array of shape (size * rows, ...).

        Returns:
            `out`, or a new array of x's library.
        """

    @overload
    def allgatherv(
        self, x: A, counts: Sequence[int] | None = None, out: None = None, **options: Unpack[Moving]
    ) -> A: ...
    @overload
    def allgatherv(
        self, x: ArrayLike, counts: Sequence[int] | None = None, out: None = None, **options: Unpack[Moving]
    ) -> NDArray[Any]: ...
    @overload
    def allgatherv(
        self, x: ArrayLike, counts: Sequence[int] | None = None, out: Out = ..., **options: Unpack[Moving]
    ) -> Out: ...
    def allgatherv(
        self, x: ArrayLike, counts: Sequence[int] | None = None, out: Any = None, **options: Unpack[Moving]
    ) -> Any:
        """allgather of arrays whose numbers of rows differ.

        Args:
            x: array of shape (rows, ...); the other axes must agree between ranks.
            counts: rows of every rank; None gathers them first.
            out: array of shape (sum(counts), ...).

        Returns:
            `out`, or a new array of x's library.

        Raises:
            ValueError: x does not have counts[rank] rows.
        """

    @overload
    def gather(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> A | None: ...
    @overload
    def gather(
        self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]
    ) -> NDArray[Any] | None: ...
    @overload
    def gather(self, x: ArrayLike, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Out | None: ...
    def gather(self, x: ArrayLike, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Any:
        """The root gets all ranks' x, joined along the first axis in rank order.

        Args:
            x: array of shape (rows, ...), the same on every rank; 0-d counts as one row.
            root: the rank that gets the result.
            out: on the root, array of shape (size * rows, ...); not used on the others.

        Returns:
            `out` on the root, or a new array of x's library; None on the others.
        """

    @overload
    def scatter(self, x: A, root: int = 0, out: None = None, **options: Unpack[Moving]) -> A: ...
    @overload
    def scatter(self, x: ArrayLike, root: int = 0, out: None = None, **options: Unpack[Moving]) -> NDArray[Any]: ...
    @overload
    def scatter(self, x: ArrayLike | None, root: int = 0, out: Out = ..., **options: Unpack[Moving]) -> Out: ...
    def scatter(self, x: ArrayLike | None, root: int = 0, out: Any = None, **options: Unpack[Moving]) -> Any:
        """Each rank gets its rows of the root's x, cut as numpy.array_split cuts them.

        Args:
            x: at the root the whole array; elsewhere an array of the same shape and dtype (its content is not
                read), or None if `out` is given and all ranks get the same number of rows.
            root: the rank that sends.
            out: array of this rank's rows: rows // size, one more for the first rows % size ranks.

        Returns:
            `out`, or a new array of x's library with this rank's rows.
        """

    @overload
    def alltoall(self, x: A, out: None = None, **options: Unpack[Moving]) -> A: ...
    @overload
    def alltoall(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> NDArray[Any]: ...
    @overload
    def alltoall(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Out: ...
    def alltoall(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Any:
        """Rank r gets the r-th piece of every rank's x, joined in rank order; cut as by numpy.array_split.

        Args:
            x: array of shape (rows, ...), the same on every rank.
            out: array of shape (rows received, ...).

        Returns:
            `out`, or a new array of x's library.
        """

    @overload
    def alltoallv(
        self,
        x: A,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: None = None,
        **options: Unpack[Moving],
    ) -> A: ...
    @overload
    def alltoallv(
        self,
        x: ArrayLike,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: None = None,
        **options: Unpack[Moving],
    ) -> NDArray[Any]: ...
    @overload
    def alltoallv(
        self,
        x: ArrayLike,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: Out = ...,
        **options: Unpack[Moving],
    ) -> Out: ...
    def alltoallv(
        self,
        x: ArrayLike,
        send_counts: Sequence[int],
        recv_counts: Sequence[int] | None = None,
        out: Any = None,
        **options: Unpack[Moving],
    ) -> Any:
        """alltoall with pieces of any size.

        Args:
            x: array of shape (sum(send_counts), ...).
            send_counts: rows for each rank.
            recv_counts: rows expected from each rank; optional, only checked.
            out: array of shape (sum of rows received, ...).

        Returns:
            `out`, or a new array of x's library.

        Raises:
            MismatchError: on every rank, if recv_counts of any rank differ from what the others send.
        """

    def barrier(self, **options: Unpack[Moving]) -> None:
        """Return once every rank has called.

        With `stream=`, return immediately: that stream waits until the stream of every rank has reached this point.
        """

    def send(self, x: ArrayLike, dest: int, *, timeout: float | None = None) -> None:
        """Send x to one rank, which must `recv` it. Messages between two ranks arrive in order.

        A message of up to 32 KiB does not wait for the receiver; up to two longer ones at a time can be in flight.
        Messages of GPU arrays are staged through host memory.

        Args:
            x: array of any shape.
            dest: another rank.
            timeout: seconds to wait for the receiver; default PYCOLLECTIVE_TIMEOUT.

        Raises:
            ValueError: dest is not another rank.
        """

    def recv(self, out: Out, source: int, *, timeout: float | None = None) -> Out:
        """Receive a message from `source` into `out`.

        Args:
            out: array of the message's size and dtype.
            source: another rank.
            timeout: seconds to wait for the message; default PYCOLLECTIVE_TIMEOUT.

        Returns:
            `out`.

        Raises:
            MismatchError: the message has another size or dtype.
            ValueError: source is not another rank.
        """


def name_call(error: Exception, name: str | None) -> None:
    """Add a call's name to its error; also for calls that enter the core without Python."""
    if name is not None and hasattr(error, "add_note"):
        error.add_note(f"in the call named {checks.brief(name)}")

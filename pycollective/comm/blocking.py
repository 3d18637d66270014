"""A communicator's collectives and messages, in their blocking form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from pycollective.comm import arrays, calls
from pycollective.comm.calls import KIND
from pycollective.comm.described import described
from pycollective.comm.options import waiting
from pycollective.comm.starting import Starting

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from pycollective.comm.options import Moving, Options
    from pycollective.typing import A, ArrayLike, Out

_ALLREDUCE, _BROADCAST = KIND["allreduce"], KIND["broadcast"]
_PLAIN = frozenset(["op", "topology", "timeout"])
"""Options with which the core can be called as it is."""


@described
class Blocking(Starting):
    """What a communicator does and returns from when this rank's part is done."""

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
            out: where the result goes, of x's size and dtype; `out=x` works in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library, shape and dtype.
        """
        if options.keys() <= _PLAIN:
            op, topology, timeout = options.get("op", "sum"), options.get("topology"), options.get("timeout")
            result = self._call(_ALLREDUCE, x, out, op, topology, -1, None, None, timeout, False)
            if result is not NotImplemented:
                return result
        return self._run(calls.allreduce(x, out), options)

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
            out: on the root, where the result goes, of x's size and dtype; not used on the others.

        Returns:
            on the root `out`, or a new array of x's library, shape and dtype; None on the others.
        """
        return self._run(calls.reduce(x, root, out, self.rank), options)

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
        return self._run(calls.reduce_scatter(x, out, self.rank, self.size), options)

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
            out: where the result goes, of x's size and dtype; `out=x` works in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library, shape and dtype.

        Raises:
            ValueError: op is avg; ranks reduce different numbers of arrays.
        """
        return self._run(calls.elementwise("scan", x, out), options)

    @overload
    def exscan(self, x: A, out: None = None, **options: Unpack[Options]) -> A: ...
    @overload
    def exscan(self, x: ArrayLike, out: None = None, **options: Unpack[Options]) -> NDArray[Any]: ...
    @overload
    def exscan(self, x: ArrayLike, out: Out, **options: Unpack[Options]) -> Out: ...
    def exscan(self, x: ArrayLike, out: Any = None, **options: Unpack[Options]) -> Any:
        """Exclusive prefix reduction: rank r gets the reduction of the x of ranks 0 to r - 1, element by element.

        Rank 0 gets nothing: an `out` that it gives is left as it is, and a new array is all zeros.

        Args:
            x: array of any shape, the same shape and dtype on every rank.
            out: where the result goes, of x's size and dtype; `out=x` works in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library, shape and dtype.

        Raises:
            ValueError: op is avg; ranks reduce different numbers of arrays.
        """
        return self._run(calls.elementwise("exscan", x, out), options)

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
            out: where the result goes, of x's size and dtype; `out=x` fills x in place. Default: a new array.

        Returns:
            `out`, or a new array of x's library and shape.
        """
        if not options:
            try:
                result = self._call(_BROADCAST, x, out, "sum", None, root, None, None, None, False)
            except TypeError:
                calls.rank_number(root, "root")
                raise
            if result is not NotImplemented:
                return result
        return self._run(calls.broadcast(x, root, out), options)

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
        shape = arrays.shape_of(x)
        return self._run(calls.allgather(x, out, (shape[0] if shape else 1,) * self.size), options)

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
            x: array of shape (rows, ...); the other axes agree between ranks.
            counts: rows of every rank; None asks the ranks first.
            out: array of shape (sum(counts), ...).

        Returns:
            `out`, or a new array of x's library.

        Raises:
            ValueError: x has not counts[rank] rows.
        """
        if counts is None:
            shape = arrays.shape_of(x)
            rows = np.array([shape[0] if shape else 1], np.int64)
            counts = [int(n) for n in self.allgather(rows, **waiting(options))]
        return self._run(calls.allgatherv(x, out, counts, self.rank, self.size), options)

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
            on the root `out`, or a new array of x's library; None on the others.
        """
        return self._run(calls.gather(x, root, out, self.rank, self.size), options)

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
                read), or None where `out` is given and all ranks get equally much.
            root: the rank that sends.
            out: array of this rank's rows: rows // size, one more for the first rows % size ranks.

        Returns:
            `out`, or a new array of x's library with this rank's rows.
        """
        return self._run(calls.scatter(x, root, out, self.rank, self.size), options)

    @overload
    def alltoall(self, x: A, out: None = None, **options: Unpack[Moving]) -> A: ...
    @overload
    def alltoall(self, x: ArrayLike, out: None = None, **options: Unpack[Moving]) -> NDArray[Any]: ...
    @overload
    def alltoall(self, x: ArrayLike, out: Out, **options: Unpack[Moving]) -> Out: ...
    def alltoall(self, x: ArrayLike, out: Any = None, **options: Unpack[Moving]) -> Any:
        """Rank r gets the r-th piece of every rank's x, joined in rank order; pieces as numpy.array_split cuts.

        Args:
            x: array of shape (rows, ...), the same on every rank.
            out: array of shape (rows received, ...).

        Returns:
            `out`, or a new array of x's library.
        """
        return self._run(calls.alltoall(x, out, self.rank, self.size), options)

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
            recv_counts: rows expected from each rank; checked, not needed.
            out: array of shape (sum of what is received, ...).

        Returns:
            `out`, or a new array of x's library.

        Raises:
            MismatchError: on every rank, if somewhere recv_counts are not what the others send.
        """
        return self._run(self._alltoallv(x, send_counts, recv_counts, out, options), options)

    def barrier(self, **options: Unpack[Moving]) -> None:
        """Return once every rank has called.

        With `stream=` return at once: that stream is held back until every rank's has come so far.
        """
        self._run(calls.barrier(), options)

    def send(self, x: ArrayLike, dest: int, *, timeout: float | None = None) -> None:
        """Send x to one rank, which must `recv` it. Messages between two ranks arrive in order.

        A message of up to 32 KiB does not wait for the receiver; of longer ones two at a time can be under way.
        Messages of GPU arrays go through host memory.

        Args:
            x: array of any shape.
            dest: another rank.
            timeout: seconds to wait for the receiver; default PYCOLLECTIVE_TIMEOUT.

        Raises:
            ValueError: dest is not another rank.
        """
        self._transfer(self.rank, dest, x if type(x) is np.ndarray else arrays.message(x), None, timeout, False)

    def recv(self, out: Out, source: int, *, timeout: float | None = None) -> Out:
        """Receive into `out` what `source` sends.

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
        own = type(out) is np.ndarray
        if not own and arrays.on_device(out):
            self.irecv(out, source, timeout=timeout).wait()
            return out
        self._transfer(source, self.rank, None, out if own else arrays.writable(out), timeout, False)
        return out

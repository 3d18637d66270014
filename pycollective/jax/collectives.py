"""The collectives and messages, eagerly and inside jax.jit. Calls run in the program's order, on every rank.

Shapes and arguments are those of mpi4jax. Arguments that the functions share:
    op: an operator's name ("sum", "avg", "prod", "min", "max", "band", "bor", "bxor", "land", "lor"), one made by
        `pycollective.op`, Horovod's (`Sum`, `Average`, ...) or mpi4py's (`MPI.SUM`, ...).
    root, dest, source: a rank; an integer known when the function is traced.
    comm: a pycollective.Communicator, or an mpi4py communicator, for which one is made at its first use (collective);
        default: all ranks.

All raise TypeError and ValueError when the function is traced: for element types and operators that no collective takes
and for wrong shapes; and jax.errors.JaxRuntimeError when it runs, with the text of the error (MismatchError,
PeerLostError, ...) that Communicator's collectives raise.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from pycollective import checks
from pycollective.comm.communicator import Communicator
from pycollective.jax import primitives
from pycollective.jax.communicators import communicator_of, mpi_constant, operator_of
from pycollective.jax.planned import PlannedCollective, rank_of
from pycollective.schedule.collectives import CALLS

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "send",
    "sendrecv",
]


def _array(x: Any) -> Any:
    if getattr(x, "dtype", None) == jax.dtypes.float0:
        raise TypeError("x has element type float0: it is the gradient of an integer, which has no elements")
    return jnp.asarray(x)


def allreduce(x: Any, op: Any, *, comm: Any = None) -> jax.Array:
    """The reduction of all ranks' x, on every rank.

    Args:
        x: array of any shape, the same shape and dtype on every rank.
        op, comm: see the module.

    Returns:
        an array of x's shape and dtype. With sum and avg it can be differentiated: the cotangents of the ranks' results
        are taken to be equal, as those of one loss that every rank computes.
    """
    return _bind("allreduce", x, comm, op)


def reduce(x: Any, op: Any, root: int, *, comm: Any = None) -> jax.Array:
    """The reduction of all ranks' x, on the root.

    Args:
        x: as for `allreduce`.
        op, root, comm: see the module.

    Returns:
        an array of x's shape and dtype; on the other ranks x.
    """
    return _bind("reduce", x, comm, op, root)


def reduce_scatter(x: Any, op: Any, *, comm: Any = None) -> jax.Array:
    """Rank r's block of the reduction of all ranks' x.

    Args:
        x: array of shape (size, ...), the same shape and dtype on every rank.
        op, comm: see the module.

    Returns:
        an array of shape x.shape[1:].
    """
    return _bind("reduce_scatter", x, comm, op)


def scan(x: Any, op: Any, *, comm: Any = None) -> jax.Array:
    """The reduction of the x of ranks 0 to this one.

    Args:
        x: as for `allreduce`.
        op, comm: see the module; not avg.

    Returns:
        an array of x's shape and dtype.
    """
    return _bind("scan", x, comm, op)


def _bind(name: str, x: Any, comm: Any, op: Any = "sum", root: Any = None) -> Any:
    comm, op = communicator_of(comm), operator_of(op)
    if name == "scan" and op == "avg":
        checks.refuse_value("op", "another operator than avg: ranks reduce different numbers of arrays", op)
    number = rank_of(root, "root", comm) if CALLS[name].rooted else -1
    return primitives.bind(PlannedCollective(name, comm, op, number), _array(x))


def allgather(x: Any, *, comm: Any = None) -> jax.Array:
    """All ranks' x, on every rank.

    Args:
        x: array of any shape, the same shape and dtype on every rank.
        comm: see the module.

    Returns:
        an array of shape (size, *x.shape).
    """
    return _bind("allgather", x, comm)


def gather(x: Any, root: int, *, comm: Any = None) -> jax.Array:
    """All ranks' x, on the root.

    Args:
        x: as for `allgather`.
        root, comm: see the module.

    Returns:
        on the root an array of shape (size, *x.shape); on the other ranks x.
    """
    return _bind("gather", x, comm, root=root)


def scatter(x: Any, root: int, *, comm: Any = None) -> jax.Array:
    """Rank r's block of the root's x.

    Args:
        x: on the root an array of shape (size, ...); on the others any array of the result's shape and dtype.
        root, comm: see the module.

    Returns:
        an array of shape x.shape[1:] of the root's x.
    """
    return _bind("scatter", x, comm, root=root)


def bcast(x: Any, root: int, *, comm: Any = None) -> jax.Array:
    """The root's x, on every rank.

    Args:
        x: array; on the other ranks any array of the same shape and dtype.
        root, comm: see the module.

    Returns:
        an array of x's shape and dtype.
    """
    return _bind("broadcast", x, comm, root=root)


broadcast = bcast


def alltoall(x: Any, *, comm: Any = None) -> jax.Array:
    """Block r of x to rank r, from every rank.

    Args:
        x: array of shape (size, ...), the same shape and dtype on every rank.
        comm: see the module.

    Returns:
        an array of x's shape: block r comes from rank r.
    """
    return _bind("alltoall", x, comm)


def barrier(*, comm: Any = None) -> None:
    """Later calls of this rank run after all ranks have called it.

    It does not wait outside of a compiled function: see `jax.effects_barrier`.
    """
    primitives.barrier_p.bind(call=PlannedCollective("barrier", communicator_of(comm)))


# -- messages ----------------------------------------------------------------------------------------------------------


def send(x: Any, dest: int, *, tag: int = 0, comm: Any = None) -> None:
    """Send an array to a rank, which calls `recv`.

    The messages from one rank to another arrive in the order in which they are sent.

    Args:
        x: array of any shape.
        dest, comm: see the module.
        tag: an integer that the receiver must pass, too; else both raise MismatchError.
    """
    comm = communicator_of(comm)
    primitives.send_p.bind(_array(x), call=_message(comm, dest, tag, receives=False))


def recv(x: Any, source: int | None = None, *, tag: int | None = None, comm: Any = None, status: Any = None) -> Any:
    """The next array that a rank sends to this one.

    Args:
        x: any array of the message's shape and dtype.
        source: the sender; None or MPI.ANY_SOURCE: the other one of two ranks.
        tag: that of the message; None or MPI.ANY_TAG: 0. There is no choice among messages: they arrive in order.
        comm: see the module.
        status: an mpi4py Status, in which source and tag are stored when the function is traced.

    Returns:
        an array of x's shape and dtype.
    """
    comm = communicator_of(comm)
    call = _message(comm, _source(source, comm), tag, receives=True)
    _fill(status, call.root, tag)
    return primitives.recv_p.bind(_array(x), call=call)


def sendrecv(
    sendbuf: Any,
    recvbuf: Any,
    source: int,
    dest: int,
    *,
    sendtag: int = 0,
    recvtag: int | None = None,
    comm: Any = None,
    status: Any = None,
) -> Any:
    """Send an array to a rank and receive one from a rank, at the same time.

    Args:
        sendbuf: the array to send.
        recvbuf: any array of the shape and dtype of the one to receive; it is not changed.
        source, dest: ranks; MPI.PROC_NULL or None: none. This rank itself: both or neither.
        sendtag, recvtag, comm, status: as for `send` and `recv`.

    Returns:
        the array received, of recvbuf's shape and dtype; recvbuf itself if there is no source. It has a reverse-mode
        derivative; forward mode raises RuntimeError.
    """
    comm = communicator_of(comm)
    sendbuf, recvbuf = _array(sendbuf), _array(recvbuf)
    sends, receives = not _is_unset(dest, "PROC_NULL"), not _is_unset(source, "PROC_NULL")
    if not receives:
        if sends:
            send(sendbuf, dest, tag=sendtag, comm=comm)
        return recvbuf
    if not sends:
        return recv(recvbuf, source, tag=recvtag, comm=comm, status=status)
    if source == dest == comm.rank:
        if (sendbuf.shape, sendbuf.dtype) != (recvbuf.shape, recvbuf.dtype):
            checks.refuse_value("recvbuf", f"like sendbuf, {checks.shown(sendbuf)}", recvbuf)
        return sendbuf
    call = _message(comm, dest, sendtag, receives=False)
    reply = _message(comm, _source(source, comm), recvtag, receives=True)
    _fill(status, reply.root, recvtag)
    return primitives.sendrecv_p.bind(sendbuf, recvbuf, send=call, receive=reply, forward=False)


def _message(comm: Communicator, peer: Any, tag: Any, *, receives: bool) -> PlannedCollective:
    name = "source" if receives else "dest"
    peer = rank_of(peer, name, comm)
    if peer == comm.rank:
        checks.refuse_value(name, "another rank than this one", peer)
    number = 0 if _is_unset(tag, "ANY_TAG") else checks.integer(tag, "tag", 0)
    return PlannedCollective("send", comm, root=peer, note=f"with tag {number}" if number else "", receives=receives)


def _source(source: Any, comm: Communicator) -> Any:
    if not _is_unset(source, "ANY_SOURCE"):
        return source
    if comm.size != 2:
        checks.refuse_value("source", "a rank: messages of any source exist only among 2 ranks", source)
    return 1 - comm.rank


def _is_unset(value: Any, constant: str) -> bool:
    """Return whether an argument is None, or mpi4py's constant that stands for it."""
    return value is None or value == mpi_constant(constant)


def _fill(status: Any, source: int, tag: Any) -> None:
    if status is not None:
        status.Set_source(source)
        status.Set_tag(0 if _is_unset(tag, "ANY_TAG") else tag)

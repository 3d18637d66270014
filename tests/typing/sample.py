"""A typed program: type checkers read it (`make lint`) and the tests run it, so that types match the run-time behavior.

Lines marked `type: ignore` are mistakes that a checker must find; an unused mark is an error too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import assert_type

import pycollective as pc
from pycollective import Communicator, Handle

if TYPE_CHECKING:
    import torch

Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
Integers = np.ndarray[tuple[int], np.dtype[np.int_]]


class Bare:
    """An array that has only __dlpack__."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None) -> object:
        return self._array.__dlpack__(max_version=max_version)


def of_numpy(comm: Communicator) -> None:
    x: Floats = np.ones(4, np.float32)
    out: NDArray[np.float32] = np.empty(4, np.float32)
    total = comm.allreduce(x, op="max", topology="ring", timeout=5.0)
    assert_type(total, Floats)
    assert_type(comm.allreduce(x, out), NDArray[np.float32])
    assert_type(comm.broadcast(x, root=0), Floats)
    assert_type(comm.allgather(x), Floats)
    assert_type(comm.alltoallv(x, [4, *[0] * (comm.size - 1)]), Floats)
    gathered = comm.gather(x, 0)
    assert_type(gathered, Floats | None)
    assert (gathered is None) == (comm.rank != 0)
    assert_type(comm.scatter(None if comm.rank else np.ones(4 * comm.size, np.float32), 0, out), NDArray[np.float32])
    assert type(total) is np.ndarray and total.dtype == np.float32


def of_numbers(comm: Communicator) -> None:
    assert_type(comm.allreduce(1.5), NDArray[Any])
    assert_type(comm.allreduce([1, 2, 3]), NDArray[Any])
    assert type(comm.allreduce(1.5)) is np.ndarray and type(comm.allreduce([1, 2, 3])) is np.ndarray


def of_bare(comm: Communicator) -> None:
    bare, out = Bare(np.ones((2, 3))), Bare(np.empty((2, 3)))
    result = comm.allreduce(bare)
    assert_type(result, NDArray[Any])
    assert type(result) is np.ndarray and result.shape == (2, 3)
    assert_type(comm.allreduce(bare, out), Bare)
    assert comm.allreduce(bare, out) is out


def of_torch(comm: Communicator, tensor: torch.Tensor) -> torch.Tensor:
    import torch

    result = comm.allreduce(tensor, prescale=0.5)
    assert_type(result, torch.Tensor)
    assert_type(comm.iallgather(tensor).result(), torch.Tensor)
    assert type(result) is torch.Tensor
    return result


def nonblocking(comm: Communicator) -> None:
    x = np.arange(3)
    handle = comm.iallreduce(x)
    assert_type(handle, Handle[Integers])
    assert_type(handle.result(1.0), Integers)
    assert_type(comm.ibarrier().result(), None)
    assert comm.ireduce(x).result() is not None or comm.rank


def of_objects(comm: Communicator) -> None:
    assert_type(comm.broadcast_object({"a": 1}), dict[str, int])
    assert_type(comm.allgather_object(comm.rank), list[int])
    assert_type(comm.gather_object("x"), list[str] | None)
    assert_type(comm.scatter_object(["x"] * comm.size), str)


def of_the_module() -> None:
    x: Floats = np.ones(2, np.float32)
    assert_type(pc.rank(), int)
    assert_type(pc.allreduce(x), Floats)
    assert_type(pc.iallreduce(x, op="sum").result(), Floats)
    assert_type(pc.broadcast_object(3), int)
    assert_type(pc.local_world(2).run(lambda comm: comm.rank), list[int])


def mistakes(comm: Communicator) -> None:
    """Never called."""
    x = np.ones(2)
    comm.allreduce(x, operation="sum")  # type: ignore[call-overload]
    comm.broadcast(x, op="sum")  # type: ignore[call-overload]
    comm.allreduce(x, out=3)  # type: ignore[call-overload]
    comm.allreduce(object())  # type: ignore[call-overload]
    comm.broadcast(x, "0")  # type: ignore[call-overload]
    pc.allreduce(x, topologie="ring")  # type: ignore[call-overload]
    pc.barrier(3)  # type: ignore[call-arg]
    comm.recv(3, 0)  # type: ignore[type-var]
    total: list[float] = comm.allreduce(x)  # type: ignore[assignment]
    print(total)


def main() -> None:
    comm = pc.init()
    for part in (of_numpy, of_numbers, of_bare, nonblocking, of_objects):
        part(comm)
    of_the_module()
    pc.shutdown()


if __name__ == "__main__":
    main()

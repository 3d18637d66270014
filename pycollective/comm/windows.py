"""Symmetric memory: arrays that every rank of a host makes and every peer has mapped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core
from pycollective.comm.rail_calls import RailCalls
from pycollective.comm.teams import KINDS, share_segment
from pycollective.errors import CommunicatorError, MismatchError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

HUGE_PAGE = 2 << 20
PAGE = 4096
MOST_BYTES = 1 << 62  # far from where a number of bytes would not fit its type; what is there to map is less


def empty(comm: Communicator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """See Communicator.empty."""
    if isinstance(comm._backend, RailCalls):  # ranks on several hosts share no memory: plain arrays serve them
        return np.empty(shape, dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0:
        raise ValueError(f"an array has no shape {shape}")
    if nbytes * comm.size > MOST_BYTES:
        raise CommunicatorError(f"{nbytes} bytes for each of {comm.size} ranks are more than can be mapped")
    number = next_number(comm, shape, str(dtype))
    unit = HUGE_PAGE if nbytes >= HUGE_PAGE else PAGE
    stride = max(unit, -(-nbytes // unit) * unit)
    members = range(comm.size)
    kinds = ("local",) if comm._threads else KINDS
    segment = share_segment(comm._exchange, comm.rank, members, stride * comm.size, kinds)
    assert segment is not None
    window: _core.Window = comm._backend.window(segment, number, stride, stride)
    return window.array(dtype, list(shape))


def next_number(comm: Communicator, shape: tuple[int, ...], dtype: str) -> int:
    """Collective: the number of a new window, once all ranks make the same one.

    Raises:
        MismatchError: shapes or dtypes differ between ranks.
    """
    number = next(comm._numbers)
    said = comm._exchange(f"empty {number} {shape} {dtype}".encode())
    for rank, text in enumerate(said):
        if text != said[comm.rank]:
            raise MismatchError(
                f"empty() differs between ranks: rank {comm.rank} makes {said[comm.rank].decode()}, "
                f"rank {rank} {text.decode()} (number, shape, dtype)"
            )
    return number

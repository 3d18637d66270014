"""Symmetric memory: arrays that every rank of a host makes and every peer has mapped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import _core
from pycollective.comm.rail_calls import RailCalls
from pycollective.comm.teams import KINDS, share_segment
from pycollective.errors import CommunicatorError

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

HUGE_PAGE = 2 << 20
PAGE = 4096
MOST_BYTES = 1 << 62  # far from where a number of bytes would not fit its type; what is there to map is less


def empty(comm: Communicator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """See Communicator.empty."""
    if isinstance(comm._backend, RailCalls):  # ranks on several hosts share no memory: plain arrays serve them
        return np.empty(shape, dtype)
    nbytes = part_bytes(shape, dtype.itemsize, comm.size)
    number = next_number(comm, shape, str(dtype))
    unit = HUGE_PAGE if nbytes >= HUGE_PAGE else PAGE
    stride = max(unit, -(-nbytes // unit) * unit)
    members = range(comm.size)
    kinds = ("local",) if comm._threads else KINDS
    segment = share_segment(comm._exchange, comm.rank, members, stride * comm.size, kinds)
    assert segment is not None
    window: _core.Window = comm._backend.window(segment, number, stride, stride)
    return window.array(dtype, list(shape))


def part_bytes(shape: tuple[int, ...], itemsize: int, size: int) -> int:
    """Bytes of each rank's part of a window.

    Raises:
        ValueError: a negative extent. CommunicatorError: more than can be mapped.
    """
    if min(shape, default=0) < 0:
        raise ValueError(f"an array has no shape {shape}")
    nbytes = math.prod(shape) * itemsize
    if nbytes * size > MOST_BYTES:
        raise CommunicatorError(f"{nbytes} bytes for each of {size} ranks are more than can be mapped")
    return nbytes


def next_number(comm: Communicator, shape: tuple[int, ...], dtype: str) -> int:
    """Collective: the number of a new window, once all ranks make the same one.

    Raises:
        MismatchError: shapes or dtypes differ between ranks.
    """
    comm._backend.require_turn()  # before the number is taken: they stay in step
    number = next(comm._numbers)
    comm._exchange(b"", f"empty({shape}, {dtype}), window {number}")
    return number

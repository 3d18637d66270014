"""Which rows of the data each rank works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

_MOST_ROWS = (1 << 60) - 1  # of int64 that an address space can hold


def partition(
    n: int,
    comm: Communicator | None = None,
    *,
    contiguous: bool = False,
    seed: int | None = None,
    epoch: int = 0,
    drop_last: bool = False,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """This rank's share of n rows. The shares of all ranks are disjoint and together are all rows.

    Not a collective: nothing is sent. With the strided shares the i-th batches of b rows of all ranks together are
    rows i*b*size up to (i+1)*b*size of the (shuffled) data: size ranks with b rows each do what one rank does
    with size*b rows.

    Args:
        n: number of rows.
        comm: whose rank and size count; by default that of `pycollective.init`.
        contiguous: rank r gets the r-th piece, cut as numpy.array_split cuts, instead of rows r, r + size, ...
        seed, epoch: shuffle all rows before they are shared out, on every rank alike and differently for each
            pair of the two; seed None leaves them in order.
        drop_last: leave out the last n % size rows (after shuffling: others each epoch), so that every rank gets
            equally many and hence takes equally many steps. Without it shares may differ by one row.

    Returns:
        row numbers, 1-d int64.

    Raises:
        ValueError: n, seed or epoch is negative, or n exceeds what an array can hold.
        TypeError: no integers.
    """
    n = checks.integer(n, "n", 0, _MOST_ROWS)
    seed = None if seed is None else checks.integer(seed, "seed", 0)
    epoch = checks.integer(epoch, "epoch", 0)
    contiguous, drop_last = checks.flag(contiguous, "contiguous"), checks.flag(drop_last, "drop_last")
    comm = given_or_world(comm)
    rows = np.arange(n) if seed is None else np.random.default_rng([seed, epoch]).permutation(n)
    if drop_last:
        rows = rows[: n - n % comm.size]
    share = np.array_split(rows, comm.size)[comm.rank] if contiguous else rows[comm.rank :: comm.size]
    return np.ascontiguousarray(share, np.int64)

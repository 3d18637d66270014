"""Which rows of the data a rank processes: a share of its own, or a sample of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator

_MOST_ROWS = (1 << 60) - 1  # maximum number of int64 in an address space


def partition(
    n: int,
    comm: Communicator | None = None,
    *,
    contiguous: bool = False,
    seed: int | None = None,
    epoch: int = 0,
    drop_last: bool = False,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """This rank's share of n rows. The shares of all ranks are disjoint and cover all rows.

    Not a collective: no communication. With the strided shares the i-th batches of b rows of all ranks together are
    rows i*b*size up to (i+1)*b*size of the (shuffled) data: size ranks with b rows each do the work of one rank
    with size*b rows.

    Args:
        n: number of rows.
        comm: provides rank and size; by default that of `pycollective.init`.
        contiguous: rank r gets the r-th part, divided like numpy.array_split, instead of rows r, r + size, ...
        seed, epoch: shuffle all rows before they are distributed, in the same order on all ranks, which depends on
            both; with seed None they are not shuffled.
        drop_last: omit the last n % size rows (after shuffling: different ones in each epoch), so that all ranks get
            the same number of rows and take the same number of steps. Without it shares may differ by one row.

    Returns:
        row numbers, 1-d int64.

    Raises:
        ValueError: n, seed or epoch is negative, or n exceeds what an array can hold.
        TypeError: not integers.
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


def sample_rows(
    n: int,
    comm: Communicator | None = None,
    *,
    seed: int,
    epoch: int = 0,
    count: int | None = None,
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows that this rank draws at random from all n, in an order of its own, which is new in each epoch.

    The alternative to `partition` if every rank has the whole data set: the ranks draw independently of each other, so
    in one epoch some rows are processed by several ranks and others by none; over the epochs every rank sees all rows.
    All ranks get the same number of rows, hence the same number of batches. Not a collective: no communication.

    Args:
        n: number of rows.
        comm: provides rank and size; by default that of `pycollective.init`.
        seed, epoch: the sample depends on both and on the rank.
        count: number of rows, at most n, as a rank draws each row at most once in an epoch; by default n // size, so
            that the ranks together process as many rows as with `partition(..., drop_last=True)`.

    Returns:
        row numbers, 1-d int64.

    Raises:
        ValueError: a number is out of range.
        TypeError: not integers.
    """
    n = checks.integer(n, "n", 0, _MOST_ROWS)
    seed, epoch = checks.integer(seed, "seed", 0), checks.integer(epoch, "epoch", 0)
    comm = given_or_world(comm)
    count = n // comm.size if count is None else checks.integer(count, "count", 0, n)
    # As a spawn key, the rank gives streams that are independent of each other and of `partition`.
    sequence = np.random.SeedSequence([seed, epoch], spawn_key=(comm.rank,))
    return np.ascontiguousarray(np.random.default_rng(sequence).permutation(n)[:count], np.int64)

"""Which rows of the data a rank processes: a share of its own, or a sample of all of them; and growing batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.optim.schedules import GrowingBatch

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


def growing_batches(
    rows: Callable[[int], Sequence[int] | np.ndarray[Any, Any]],
    growing: GrowingBatch,
    comm: Communicator | None = None,
    *,
    first: int = 0,
) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    """This rank's rows of one batch after the other, without end, with the number of rows that `growing` gives.

        rows = lambda epoch: partition(len(x), seed=0, epoch=epoch, drop_last=True)
        for step, batch in zip(range(steps), growing_batches(rows, growing)):
            sgd.lr = full * growing.lr(step)
            sgd.step(gradients(params, x[batch]))

    A batch may end one epoch and begin the next, so that no rows are lost, however large batches become. Not a
    collective; the ranks' batches are equally long, and a batch of all ranks together has growing.batch(step) rows,
    rounded up to a multiple of the number of ranks. With a constant batch: GrowingBatch(rows, []).

    Args:
        rows: function of the epoch, from 0, that returns the row numbers of this rank, equally many on all ranks:
            `partition` with drop_last or `sample_rows`.
        growing: the schedule.
        comm: provides the number of ranks; by default that of `pycollective.init`.
        first: step of the first batch, to continue a training: the rows of the steps before are skipped.

    Returns:
        an iterator of row numbers, 1-d int64.

    Raises:
        TypeError: rows is no function, or growing no GrowingBatch.
        ValueError: first is negative; in the iteration: there are no rows in an epoch.
    """
    checks.function(rows, "rows", "a function of the epoch")
    checks.instance(growing, "growing", GrowingBatch, "a GrowingBatch")
    first, size = checks.integer(first, "first", 0), given_or_world(comm).size
    return _batches(rows, growing, size, first)


def _batches(rows: Callable[[int], Any], growing: GrowingBatch, size: int, first: int) -> Iterator[Any]:
    epoch = step = 0
    left = _of_epoch(rows, epoch)
    while True:
        count = -(-growing.batch(step) // size)
        parts = []
        while count > len(left):
            parts.append(left)
            count -= len(left)
            epoch += 1
            left = _of_epoch(rows, epoch)
        parts.append(left[:count])
        left = left[count:]
        if step >= first:
            yield np.concatenate(parts)
        step += 1


def _of_epoch(rows: Callable[[int], Any], epoch: int) -> Any:
    found = np.asarray(rows(epoch), np.int64)
    if not found.size:
        raise ValueError(f"this rank has no rows in epoch {epoch}: a batch can never be filled")
    return found

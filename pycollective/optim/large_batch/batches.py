"""Batches whose size follows a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pycollective import checks
from pycollective.comm.world import given_or_world
from pycollective.optim.schedules import GrowingBatch

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator


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

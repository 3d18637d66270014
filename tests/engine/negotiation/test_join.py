"""join(): ranks with less work than others contribute zeros until all have joined."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
from processes import Job, all_say

from engine.operations import SECONDS, every_engine, ones
from pycollective import Communicator, CommunicatorError, PeerLostError
from pycollective.engine import Engine, Item


def uneven(engine: Engine, batches: int) -> int:
    """The batches of this rank, each of two tensors; ranks with a larger number have more."""
    for batch in range(batches):
        items = [Item("allreduce", f"{name}", np.full(count, 2.0)) for name, count in (("a", 5), ("b", 300))]
        ranks = engine.size - batch  # rank r has r + 1 batches
        for work in engine.submit(items if batch % 2 else items[::-1]):
            assert set(work.wait(SECONDS).tolist()) == {2.0 * ranks}
    return engine.join()


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@every_engine()
def test_uneven_work(engine: Engine) -> None:
    """The last to join has the most work, each rank in turn; all learn which it was, and take part again."""
    n = engine.size
    for turn in range(5):
        assert (uneven(engine, (engine.rank + turn) % n + 1) + turn) % n == n - 1
        assert engine.run([ones("all")])[0].tolist() == [n] * 3


@every_engine(4)
def test_an_average_is_over_all_ranks(engine: Engine) -> None:
    """As in Horovod: a joined rank counts as zero, and the divisor stays the number of ranks."""
    if engine.rank != 1:
        x = np.full(6, 4.0)
        assert engine.run([Item("allreduce", "mean", x, op="avg")])[0].tolist() == [3.0] * 6
        assert x.tolist() == [4.0] * 6
    engine.join()


@every_engine(3)
def test_with_what_was_in_flight_before(engine: Engine) -> None:
    """A rank that joins must still complete what it has submitted."""
    mine = engine.submit([Item("allreduce", "early", np.full(4, engine.rank + 1))])[0]
    if engine.rank == 0:
        engine.join()
        assert mine.test()
    else:
        late = engine.submit([Item("allreduce", "late", np.full(4, engine.rank + 1))])[0]
        assert late.wait(SECONDS).tolist() == [5] * 4
    assert mine.wait(SECONDS).tolist() == [6] * 4
    if engine.rank:
        engine.join()


@every_engine(4)
def test_the_last_rank_in_a_moment(engine: Engine) -> None:
    """No rank has any work: all get the same rank."""
    last = [engine.join() for _ in range(20)]
    assert set(last) <= set(range(4))
    assert engine.comm.allgather_object(last) == [last] * 4


def does_not_join(comm: Communicator, link: Connection, how: str, pending: bool) -> None:
    """Rank 1 leaves instead; returns the errors of the others."""
    engine = Engine(comm)
    assert engine.run([ones("fine")])[0].tolist() == [comm.size] * 3
    link.send("ready")
    if comm.rank == 1:
        link.recv()
        if how == "closes":
            engine.close()
            link.recv()
        return
    works = engine.submit([ones("theirs")]) if pending and comm.rank == 2 else []
    errors = {"closes": CommunicatorError, "is killed": PeerLostError}
    expected = errors.get(how, (CommunicatorError, PeerLostError))  # at its end an engine may be closed or not
    with pytest.raises(expected) as caught:
        engine.join()
    for work in works:
        with pytest.raises(expected):
            work.wait(SECONDS)
    link.send(str(caught.value))
    engine.close()


@pytest.mark.parametrize("pending", [False, True], ids=["alone", "with work of others"])
@pytest.mark.parametrize("how", ["closes", "ends", "is killed"])
def test_a_rank_that_leaves_without_joining(how: str, pending: bool) -> None:
    with Job(3, does_not_join, how, pending) as job:
        all_say(job, "ready")
        time.sleep(0.1)  # the others are in join()
        if how == "is killed":
            job.kill(1)
        else:
            job.link[1].send("leave")
        errors = [job.hear(rank, 10) for rank in (0, 2)]
        assert all("rank 1 " in text for text in errors), errors
        if how == "closes":
            job.link[1].send("end")
        outcomes = job.outcomes()
    assert all(outcomes[rank].error is None for rank in (0, 2)), outcomes

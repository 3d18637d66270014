"""Names, mismatches, process sets and lost ranks of pycollective.torch."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
from hvd import job, with_ranks
from processes import all_say
from speed import until

torch: Any = pytest.importorskip("torch")


@with_ranks(2, 3, 4)
def test_mismatches_are_named_on_every_rank(hvd: Any) -> None:
    n = hvd.size()
    last = hvd.rank() == n - 1
    x, wide = torch.ones(n, 2), torch.ones(n, 3 if last else 2)
    double = x.double() if last else x
    op, root, factor = (hvd.Max, 1, 2.0) if last else (hvd.Sum, 0, 1.0)
    wrong: list[tuple[Any, str]] = [
        (lambda: hvd.broadcast(wide, 0, name="x"), r"'broadcast.x'.*[23]\).*[23]\)"),
        (lambda: hvd.broadcast(x, root, name="x"), "root=0.*root=1|root=1.*root=0"),
        (lambda: hvd.synchronize(hvd.allreduce_async(x, name="x", op=op)), "op=sum.*op=max|op=max.*op=sum"),
        (lambda: hvd.synchronize(hvd.allreduce_async(x, name="scale", prescale_factor=factor)), "'allreduce.scale'"),
    ]
    for name in ("allreduce", "allgather", "alltoall", "reducescatter"):
        call = getattr(hvd, name)
        wrong += [
            (lambda call=call: call(wide, name="x"), rf"'{name}.x'.*[23]\).*[23]\)"),
            (lambda call=call: call(double, name="x"), "float32.*float64|float64.*float32"),
        ]
    for attempt, text in wrong:
        with pytest.raises(RuntimeError, match=text) as caught:
            attempt()
        assert not isinstance(caught.value, hvd.HorovodInternalError)
    assert torch.equal(hvd.allreduce(x, name="x"), x)  # and still works


@with_ranks(2)
def test_names_in_flight(hvd: Any) -> None:
    """Until they were waited for, however quickly the operation completes: a program must not fail intermittently."""
    x = torch.ones(3)
    hvd.barrier()
    handle = hvd.broadcast_async(x, 0, name="name")
    same_name = hvd.allgather_async(x, name="name")  # another kind of operation
    time.sleep(0.2)  # all ranks have submitted them: they are complete
    for again in (hvd.broadcast_async, hvd.broadcast):
        with pytest.raises(ValueError, match=r"'broadcast\.name' is in flight"):
            again(x, 0, name="name")
    hvd.barrier()
    assert hvd.synchronize(same_name).shape == (6,)
    if hvd.rank() == 0:
        until(lambda: hvd.poll(handle))  # which reports completion, too
    else:
        hvd.synchronize(handle)
    dropped = hvd.broadcast_async(x, 0, name="name")
    hvd.barrier()  # completes it, and is a wait: a handle may be dropped
    assert torch.equal(hvd.broadcast(x, 0, name="name"), x)
    assert torch.equal(hvd.synchronize(dropped), x)
    with pytest.raises(ValueError, match="contiguous"):
        hvd.allreduce_(torch.ones(3, 4).t())
    assert torch.equal(hvd.allreduce(torch.ones(3, 4).t()), torch.ones(4, 3))
    with pytest.raises(ValueError, match="handle"):
        hvd.poll(12345678)


@with_ranks(2)
def test_a_refused_call_can_be_mended(hvd: Any) -> None:
    """With a name or without: the numbers of operations without one remain equal on all ranks."""
    mistake, right = torch.ones(4, 6).t(), torch.ones(2, 3)
    wrong = {  # each call, what is wrong with it
        "contiguous": lambda x, name: hvd.allreduce_(x if x is right else mistake, name=name),
        "axis": lambda x, name: hvd.reducescatter(x if x is right else torch.tensor(1.0), name=name),
        "splits": lambda x, name: hvd.alltoall(x, None if x is right else [1.5], name=name),
        "root_rank": lambda x, name: hvd.broadcast(x, 0 if x is right else 7, name=name),
        "tensor": lambda x, name: hvd.allgather(x if x is right else None, name=name),
    }
    for word, call in wrong.items():
        for name in ("named", None, None):
            if hvd.rank() == 1:
                with pytest.raises((ValueError, TypeError), match=word):
                    call(mistake, name)
            call(right, name)


@with_ranks(4, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def test_process_sets(hvd: Any) -> None:
    r = hvd.rank()
    even, odd = hvd.add_process_set([0, 2]), hvd.add_process_set(hvd.ProcessSet([3, 1]))
    mine, other = (odd, even) if r % 2 else (even, odd)
    assert (mine.size(), mine.rank(), mine.included(), other.included()) == (2, r // 2, True, False)
    assert hvd.allreduce(torch.tensor([r]), op=hvd.Sum, process_set=mine).item() == (4 if r % 2 else 2)
    assert hvd.broadcast(torch.tensor([r]), 3 if r % 2 else 2, process_set=mine).item() == (3 if r % 2 else 2)
    with pytest.raises(ValueError, match="not part"):
        hvd.allreduce(torch.ones(1), process_set=other)
    with pytest.raises(ValueError, match="already"):
        hvd.add_process_set([2, 0])
    number = even.process_set_id
    assert hvd.remove_process_set(even) and not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(torch.ones(1), process_set=even)
    pair = hvd.add_process_set([0, 1])
    assert pair.process_set_id == number  # as in Horovod; and its operations are counted from the start
    if pair.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=pair).item() == 2
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 4


@with_ranks(2, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "false"})
def test_fixed_process_sets(hvd: Any) -> None:
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])


@with_ranks(1)
def test_what_was_built(hvd: Any) -> None:
    for question in ("gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "rocm_built", "mpi_enabled"):
        assert getattr(hvd, question)() is False
    assert isinstance(hvd.nccl_built(), int) and isinstance(hvd.cuda_built(), bool) and hvd.is_homogeneous()
    with pytest.raises(ValueError, match="MPI"):
        hvd.mpi_threads_supported()


@pytest.mark.parametrize("n", [2, 3, 4])
def test_a_killed_rank_is_an_internal_error_on_the_others(n: int) -> None:
    with job(n, _until_killed) as under_way:
        all_say(under_way, "working")
        killed = under_way.kill(1)
        outcomes = under_way.outcomes()
    for rank, outcome in outcomes.items():
        if rank != 1:
            assert outcome.error is None, outcome.trace
            assert outcome.at - killed < 10


def _until_killed(hvd: Any) -> None:
    x = torch.ones(12)
    hvd.allreduce(x)
    hvd.link.send("working")
    with pytest.raises(hvd.HorovodInternalError, match="rank 1 is gone"):
        while True:
            hvd.allreduce(x, name="again")
    in_place = partial(hvd.broadcast_, x, 0)
    moving = (partial(call, x) for call in (hvd.allgather, hvd.alltoall, hvd.allgather_object))
    for later in (*moving, in_place, hvd.join, hvd.barrier):
        with pytest.raises(hvd.HorovodInternalError):
            later()


@with_ranks(2)
def test_a_call_in_a_callback(hvd: Any) -> None:
    """It would wait for itself: not the error of a lost rank, and the handle stays valid."""
    from pycollective import NestedCallError
    from pycollective.hvd import handles

    later, refused = [], threading.Event()

    def callback() -> None:
        later.append(hvd.allreduce_async(torch.ones(2), name="later", op=hvd.Sum))
        for attempt in (lambda: hvd.synchronize(later[0]), lambda: hvd.allreduce(torch.ones(2), name="at once")):
            with pytest.raises(NestedCallError):
                attempt()
        refused.set()

    if hvd.rank() == 1:
        time.sleep(0.3)  # so that rank 0 waits, and runs its callback inside the wait or the engine's thread
        hvd.allreduce(torch.ones(3), name="first", op=hvd.Sum)
        hvd.allreduce(torch.ones(2), name="later", op=hvd.Sum)
        return
    first = hvd.allreduce_async(torch.ones(3), name="first", op=hvd.Sum)
    handles._pending[first][0][0].when_done(callback)
    assert hvd.synchronize(first).tolist() == [2] * 3
    assert refused.wait(20)
    assert hvd.synchronize(later[0]).tolist() == [2] * 2

"""Names, mismatches, join, process sets, lost ranks, startup and shutdown of pycollective.torch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hvd import job, run, with_ranks

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@with_ranks(2, 3)
def test_any_order(hvd: Any) -> None:
    n, r = hvd.size(), hvd.rank()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(r)).tolist()
    handles = {i: hvd.allreduce_async(torch.full((i,), float(i + r)), name=f"t{i}", op=hvd.Sum) for i in order}
    for i in reversed(order):
        assert torch.equal(hvd.synchronize(handles[i]), torch.full((i,), float(n * i + n * (n - 1) // 2)))


@with_ranks(2, 4)
def test_mismatches_are_named_on_every_rank(hvd: Any) -> None:
    r = hvd.rank()
    last = r == hvd.size() - 1
    x = torch.ones(4)
    with pytest.raises(RuntimeError, match=r"'allreduce.shape'.*shape=\([45],\).*shape=\([45],\)") as caught:
        hvd.allreduce(torch.ones(5) if last else x, name="shape")
    assert not isinstance(caught.value, hvd.mpi_ops.HorovodInternalError)
    with pytest.raises(RuntimeError, match=r"float32.*float64|float64.*float32"):
        hvd.allreduce(x.double() if last else x, name="dtype")
    with pytest.raises(RuntimeError, match=r"op=sum.*op=max|op=max.*op=sum"):
        hvd.synchronize(hvd.allreduce_async(x, name="op", op=hvd.Max if last else hvd.Sum))
    with pytest.raises(RuntimeError, match=r"root=0.*root=1|root=1.*root=0"):
        hvd.broadcast(x, 1 if last else 0, name="root")
    assert torch.equal(hvd.allreduce(x, name="shape"), x)  # and still works


@with_ranks(2)
def test_a_name_is_in_flight_until_it_was_waited_for(hvd: Any) -> None:
    """However quickly the operation completes: the same program must not fail intermittently."""
    x = torch.ones(3)
    hvd.barrier()
    handle = hvd.broadcast_async(x, 0, name="name")
    time.sleep(0.2)  # all ranks have submitted it: it is complete
    for again in (hvd.broadcast_async, hvd.broadcast):
        with pytest.raises(ValueError, match=r"'broadcast\.name' is in flight"):
            again(x, 0, name="name")
    hvd.barrier()
    if hvd.rank() == 0:
        while not hvd.poll(handle):  # which reports completion, too
            time.sleep(0.001)
    else:
        hvd.synchronize(handle)
    dropped = hvd.broadcast_async(x, 0, name="name")
    hvd.barrier()  # completes it, and is a wait: a handle may be dropped
    assert torch.equal(hvd.broadcast(x, 0, name="name"), x)
    assert torch.equal(hvd.synchronize(dropped), x)


@with_ranks(2)
def test_names_in_flight(hvd: Any) -> None:
    x = torch.ones(3)
    handle = hvd.allreduce_async(x, name="twice")
    hvd.barrier()  # it may have completed by now, but is not synchronized
    hvd.synchronize(handle)
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(x, name="twice")
        with pytest.raises(ValueError, match="twice"):
            hvd.allreduce_async(x, name="twice")
        same_name = hvd.allgather_async(x, name="twice")  # another kind of operation
    hvd.allgather_object(None)
    if hvd.rank() == 1:
        handle = hvd.allreduce_async(x, name="twice")
        same_name = hvd.allgather_async(x, name="twice")
    assert hvd.synchronize(same_name).shape == (6,)
    hvd.synchronize(handle)
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


@with_ranks(1, 2, 3, 4)
def test_join(hvd: Any) -> None:
    """Rank r has r batches; a joined rank adds zeros, the mean is over all ranks."""
    n, r = hvd.size(), hvd.rank()
    for batch in range(r):
        still = n - 1 - batch
        assert torch.equal(hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"b{batch}"), torch.full((3,), float(still)))
    assert hvd.join() == n - 1
    assert torch.equal(hvd.allreduce(torch.ones(2), op=hvd.Sum), torch.full((2,), float(n)))


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
    assert hvd.remove_process_set(even) and not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="not registered"):
        hvd.allreduce(torch.ones(1), process_set=even)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 4


@pytest.mark.parametrize("env", [{}, {"HOROVOD_DYNAMIC_PROCESS_SETS": "false"}], ids=["unset", "false"])
def test_fixed_process_sets(env: dict[str, str]) -> None:
    run(2, _fixed_process_sets, env=env)


def _fixed_process_sets(hvd: Any) -> None:
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):
        hvd.add_process_set([0])
    hvd.shutdown()
    alone = hvd.ProcessSet([1])
    hvd.init(process_sets=[alone])
    if hvd.rank() == 1:
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=alone).item() == 1


@with_ranks(3)
def test_shutdown_and_init_again(hvd: Any) -> None:
    for turn in range(3):
        assert hvd.is_initialized()
        assert hvd.allreduce(torch.tensor([turn]), op=hvd.Sum).item() == 3 * turn
        hvd.shutdown()
        assert not hvd.is_initialized()
        with pytest.raises(ValueError, match="not been initialized"):
            hvd.rank()
        hvd.init(comm=[0, 1, 2] if turn == 1 else None)


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
        for rank in range(n):
            assert under_way.hear(rank) == "working"
        killed = under_way.kill(1)
        outcomes = under_way.outcomes()
    for rank, outcome in outcomes.items():
        if rank != 1:
            assert outcome.error is None, outcome.trace
            assert "rank 1" in outcome.value, outcome.value
            assert outcome.at - killed < 10


def _until_killed(hvd: Any) -> str:
    hvd.allreduce(torch.ones(5))
    hvd.link.send("working")
    try:
        while True:
            hvd.allreduce(torch.ones(5), name="again")
    except hvd.HorovodInternalError as error:
        return str(error)


@with_ranks(2, env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0.5"})
def test_a_stall_ends_the_job_if_requested(hvd: Any) -> None:
    name = "late" if hvd.rank() == 0 else "another"
    with pytest.raises(hvd.HorovodInternalError, match=r"(late|another)' has waited"):  # whichever was submitted first
        hvd.allreduce(torch.ones(2), name=name)


def test_timeline(tmp_path: Path) -> None:
    run(4, _timeline, str(tmp_path / "timeline.json"))
    events = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1, 2, 3}
    assert {"NEGOTIATE_ALLREDUCE", "QUEUE", "ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER"} <= {e["name"] for e in events}
    assert not list(tmp_path.glob("*.rank*"))


def _timeline(hvd: Any, path: str) -> None:
    hvd.start_timeline(path, mark_cycles=True)
    hvd.grouped_allreduce([torch.ones(5000), torch.ones(3)], name="g")
    hvd.stop_timeline()


@pytest.mark.parametrize("how", ["ends", "shuts down"])
def test_a_rank_that_leaves_without_joining(how: str) -> None:
    with job(3, _does_not_join, how) as ranks:
        errors = [ranks.hear(rank, 20) for rank in (0, 2)]
        if how == "shuts down":  # otherwise it has ended
            ranks.link[1].send("end")
        ranks.outcomes()
    assert all("rank 1 " in str(text) for text in errors), errors


def _does_not_join(hvd: Any, how: str) -> None:
    hvd.allreduce(torch.ones(3))
    if hvd.rank() == 1:
        hvd.shutdown()
        if how == "shuts down":
            hvd.link.recv()
        return
    with pytest.raises(hvd.HorovodInternalError) as caught:
        hvd.join()
    hvd.link.send(str(caught.value))


@with_ranks(2)
def test_a_call_in_a_callback(hvd: Any) -> None:
    """It would wait for itself: not the error of a lost rank, and the handle stays valid."""
    from pycollective import NestedCallError
    from pycollective.hvd import handles

    errors: list[BaseException] = []

    def callback() -> None:
        later.append(hvd.allreduce_async(torch.ones(2), name="later", op=hvd.Sum))
        for attempt in (lambda: hvd.synchronize(later[0]), lambda: hvd.allreduce(torch.ones(2), name="at once")):
            try:
                attempt()
            except NestedCallError as error:
                errors.append(error)

    later: list[int] = []
    if hvd.rank() == 1:
        time.sleep(0.3)  # so that rank 0 waits, and runs its callback inside the wait or the engine's thread
        hvd.allreduce(torch.ones(3), name="first", op=hvd.Sum)
        hvd.allreduce(torch.ones(2), name="later", op=hvd.Sum)
        return
    first = hvd.allreduce_async(torch.ones(3), name="first", op=hvd.Sum)
    handles._pending[first][0][0].when_done(callback)
    assert hvd.synchronize(first).tolist() == [2] * 3
    end = time.monotonic() + 20
    while len(errors) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(errors) == 2
    assert hvd.synchronize(later[0]).tolist() == [2] * 2

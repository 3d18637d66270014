"""torch.distributed on CUDA tensors, with stand-ins over the emulated runtime; see standin.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from c10d import World, all_gather_single, job, reduce_scatter_single
from processes import TESTS, _load
from speed import until

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from c10d import on_ranks  # noqa: E402
from c10d_training import compare as compare_training  # noqa: E402

from gpu.torch import c10d_calls, standin  # noqa: E402
from gpu.torch.standin import get, put  # noqa: E402
from pycollective.comm.cuda.runtime import load  # noqa: E402
from pycollective.torch.distributed.cuda import cuda  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.emulated, pytest.mark.usefixtures("cuda")]


@on_ranks(3)
def test_collectives(world: World) -> None:
    standin.install()
    c10d_calls.compare(world, put, get)


# -- streams -----------------------------------------------------------------------------------------------------------


@on_ranks(2)
def test_the_host_does_not_wait(world: World) -> None:
    made, store = standin.install(), world.ours.get_group_store()
    x = put(torch.ones(20_000))
    dist.all_reduce(x)  # sets the group's GPU side up, which waits for all ranks
    assert get(x)[0] == 2
    if world.rank:
        store.wait(["others"])
    # Rank 0 passes all of this before rank 1 arrives.
    work = dist.all_reduce(x, async_op=True)
    made.current(0).synchronize()  # the computation's stream continues too, unless a wait is enqueued on it
    late = work.is_completed() or work.is_success() or work.exception() is not None
    if world.rank == 0:
        with pytest.raises(RuntimeError, match="has not completed yet"):
            work.wait(timedelta(seconds=0.02))
    work.wait()
    side = cuda().stream(0)
    with made.current_is(side):
        work.wait()  # in the current stream
    waiting = [made.current(0).record_event(), side.record_event()]
    dist.all_reduce(x)  # after the other call: the current stream waits for it
    copied = put(torch.zeros(20_000))
    much = standin.empty((2, 1 << 23), torch.float32)
    for _ in range(3):  # the current stream has other work, and reaches the last copy later
        load().copy(much[0].data_ptr(), much[1].data_ptr(), 1 << 25, 0, 0)
    load().copy(copied.data_ptr(), x.data_ptr(), 80_000, 0, 0)
    total = dist.all_reduce(copied, async_op=True)
    if world.rank == 0:
        assert not late and not any(event.query() for event in waiting)
        store.set("others", "go")
    assert get(x)[0] == 8
    total.wait()
    assert get(copied)[0] == 16
    work.wait(timedelta(seconds=20))
    assert work.is_completed() and work.is_success() and work.result()[0] is x
    assert all(event.query() for event in waiting)


@on_ranks(2)
def test_order_futures_messages_and_barriers(world: World) -> None:
    standin.install()
    _overlapping_calls(world)
    x = put(torch.full((30_000,), world.rank + 1.0))
    future = dist.all_reduce(x, async_op=True).get_future()
    assert future.then(lambda f: get(f.value()[0])[0] * 2).wait() == 6
    works = [dist.all_reduce(x, async_op=i % 2 == 0) for i in range(3)]
    dist.barrier()
    assert all(work is None or work.is_completed() for work in works) and x[0] == 24  # without get: all has completed
    # Messages, of a pending call's result, and with gaps.
    peer = 1 - world.rank
    dist.all_reduce(x)
    works = [dist.isend(x, peer), dist.irecv(got := put(torch.zeros(30_000)), peer)]
    for work in works:
        work.wait()
    assert (got == 48).all()
    sent, got = put(torch.arange(6.0).view(2, 3) + world.rank), put(torch.zeros(3, 2)).t()
    many = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, got, peer)]
    for work in dist.batch_isend_irecv(many):
        work.wait()
    assert got.tolist() == (torch.arange(6.0).view(2, 3) + peer).tolist()
    # Several tensors as one call, and single tensors.
    several = [put(torch.full((n,), world.rank + 1.0)) for n in (3, 5, 400_000)]
    with dist._coalescing_manager(group=world.ours, async_ops=True) as manager:
        for one in several:
            dist.all_reduce(one)
    manager.wait()
    assert [get(one).sum() for one in several] == [9, 15, 1_200_000]
    whole, part = put(torch.zeros(8)), put(torch.arange(8.0))
    all_gather_single(whole, part[:4])
    reduce_scatter_single(part[4:], whole)
    assert get(part).tolist() == [0, 1, 2, 3] + [0, 2, 4, 6]
    uneven = put(torch.zeros(3 - world.rank))
    sizes = [[1, 2], [1, 1]][world.rank], [[1, 1], [2, 1]][world.rank]
    dist.all_to_all_single(uneven, part[: sum(sizes[1])].contiguous(), sizes[0], sizes[1])
    assert get(uneven).numel() == sum(sizes[0])
    _refused(world)


def _overlapping_calls(world: World) -> None:
    """Calls on the same memory, some of them asynchronous, different on each rank, run in program order."""
    x, works = put(torch.ones(20_000)), []
    for i in range(8):
        later = (i + world.rank) % 2 == 0
        works.append(dist.all_reduce(x[: 20_000 - i], async_op=later))
        parts = put(torch.full((4,), float(i)))
        works.append(dist.all_to_all_single(parts, put(parts), async_op=not later))
    for work in filter(None, works):
        work.wait()
    assert get(x)[0] == 2**8 and get(x)[-1] == 2 and (get(parts) == 7).all()
    store, x = world.ours.get_group_store(), put(torch.ones(20_000))
    if world.rank:
        store.wait(["first"])
    works = [dist.all_reduce(x, async_op=True)]
    store.set("first", "made")
    works.append(dist.all_reduce(x[::2], async_op=True))  # packed, but not before the first has completed
    for work in works:
        work.wait()
    assert get(x)[:2].tolist() == [4, 2]


def _refused(world: World) -> None:
    here, there = torch.ones(4), put(torch.ones(4))
    with pytest.raises(ValueError, match="different devices, cpu and cuda:0"):
        dist.all_gather([there, put(here)], here)
    with pytest.raises(ValueError, match="different devices"):
        dist.all_to_all_single(here, there)
    with pytest.raises(TypeError, match="meta"):
        dist.all_reduce(torch.ones(4, device="meta"))
    dist.all_reduce(there)
    assert get(there)[0] == 2


# -- users of the backend --------------------------------------------------------------------------------------------


@on_ranks(2, gloo=True, on_device=True)
def test_training(world: World) -> None:
    """As the CPU tests, which compare with Gloo."""
    folder = TESTS / "frameworks" / "torch" / "distributed"
    parallel, sharded = (str(folder / f"test_{name}.py") for name in ("data_parallel", "sharded"))
    for name in ("_data_parallel", "_hooks"):
        _load(parallel, name)(world)
    _load(sharded, "_in_parts")(world)
    compare_training(world, _load(sharded, "_fsdp2"), _load(sharded, "_fsdp1"))


def test_a_lost_rank() -> None:
    with job(2, _lost, seconds=30) as started:
        started.hear(0)
        started.kill(1)
        found = started.outcomes()[0]
        assert found.error is None, found.trace


def _lost(world: World) -> None:
    standin.install()
    x = put(torch.ones(20_000))
    dist.all_reduce(x)
    get(x)
    world.link.send("ready")
    if world.rank == 1:
        world.link.recv()  # and is killed
    work = dist.all_reduce(x, async_op=True)
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        work.wait(timedelta(seconds=20))
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        dist.all_reduce(x)
    until(work.is_completed)  # the kernel gives up
    assert not work.is_success() and "rank 1 is gone" in str(work.exception())

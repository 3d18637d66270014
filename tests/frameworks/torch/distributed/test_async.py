"""Asynchronous calls, futures and their callbacks, the engine, topologies: calls run in program order."""

from __future__ import annotations

import threading
import time
import weakref
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest
from c10d import World, all_gather_single, naming, on_ranks
from speed import until

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from pycollective.torch.distributed import Options  # noqa: E402


@on_ranks(1, 2, 3, 4)
def test_work(world: World) -> None:
    x = torch.full((1000,), float(world.rank))
    total = sum(range(world.size))
    work = dist.all_reduce(x, async_op=True)
    assert work.wait() is True and work.wait(timedelta(seconds=1))
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert (x == total).all() and work.result()[0] is x
    outs = [torch.zeros(2) for _ in range(world.size)]
    work = dist.all_gather(outs, torch.full((2,), float(world.rank)), async_op=True)
    until(work.is_completed)  # also without a wait
    assert [out[0].item() for out in outs] == list(range(world.size))
    work = dist.barrier(async_op=True)
    assert work.wait() and work.result() == []
    flipped = torch.arange(6.0).reshape(2, 3).t()
    work = dist.all_reduce(flipped, async_op=True)
    assert work.get_future().wait()[0] is flipped
    assert torch.equal(flipped, world.size * torch.arange(6.0).reshape(2, 3).t())


@on_ranks(2)
def test_a_call_that_is_late_can_be_waited_for_again(world: World) -> None:
    x = torch.ones(10)
    if world.rank == 0:
        work = dist.all_reduce(x, async_op=True)
        with pytest.raises(RuntimeError, match="has not completed yet"):
            work.wait(timedelta(seconds=0.05))
        assert not work.is_completed() and work.exception() is None
        added = work.get_future().then(lambda future: future.value()[0] + 1)  # does not wait
        world.ours.get_group_store().set("go", "on")
        work.wait()
        assert added.wait().tolist() == [3] * 10
    else:
        world.ours.get_group_store().wait(["go"])
        dist.all_reduce(x)
    assert x[0] == 2


@on_ranks(2)
def test_late_calls_of_a_group_can_be_waited_for_again(world: World) -> None:
    outs = [torch.zeros(4, dtype=torch.int64) for _ in range(3)]
    if world.rank == 1:
        world.ours.get_group_store().wait(["go"])
    with dist._coalescing_manager(async_ops=True) as manager:
        for i, out in enumerate(outs):
            all_gather_single(out, torch.full((2,), i + world.rank))
    (work,) = manager.works
    if world.rank == 0:
        begin = time.monotonic()
        with pytest.raises(RuntimeError, match="has not completed yet"):
            work.wait(timedelta(seconds=0.05))
        assert time.monotonic() - begin < 10 and not work.is_completed()
        world.ours.get_group_store().set("go", "on")
    work.wait()
    assert [out.tolist() for out in outs] == [[i, i, i + 1, i + 1] for i in range(3)]


@on_ranks(2)
def test_the_timeout_of_a_calls_options(world: World) -> None:
    store = world.ours.get_group_store()
    for later in (False, True):
        group = dist.new_group()
        if world.rank == 0:
            opts = dist.AllreduceOptions()
            opts.asyncOp, opts.timeout = later, timedelta(seconds=0.2)
            begin = time.monotonic()
            with naming(later), pytest.raises(RuntimeError, match=r"not entered within 0\.2 s by rank 1"):
                group.allreduce([torch.ones(2)], opts).wait()
            assert time.monotonic() - begin < 10
            store.set(f"late {later}", "on")
        store.wait([f"late {later}"])


@on_ranks(2, 3)
def test_ranks_may_differ_in_what_they_wait_for(world: World) -> None:
    """Calls that are asynchronous on one rank and not on another; several in progress; no call overtakes another."""
    x, works = torch.ones(20_000), []
    for i in range(12):
        later = (i + world.rank) % 2 == 0
        work = dist.all_reduce(x, async_op=later)
        works += [work] * later
        parts = torch.empty(world.size * 2)  # and a call of several steps in between
        work = dist.all_to_all_single(parts, torch.full((world.size * 2,), float(i)), async_op=not later)
        works += [work] * (not later)
        if i % 4 == 3:
            for work in works:
                work.wait()
            assert (parts == i).all()
            assert (x == float(world.size) ** (i + 1)).all()
            works = []


@on_ranks(1, 2, 3)
def test_futures(world: World) -> None:
    n = world.size
    x = torch.ones(5)
    future = dist.all_reduce(x, async_op=True).get_future()
    chained = future.then(lambda f: f.value()[0] * 10).then(lambda f: f.wait() + 1)
    assert chained.wait().tolist() == [10.0 * n + 1] * 5
    assert future.done() and future.value()[0] is x
    both = torch.futures.collect_all([dist.all_reduce(x, async_op=True).get_future(), chained]).wait()
    assert both[0].value()[0][0] == n * n
    failing = dist.all_reduce(x, async_op=True).get_future().then(lambda f: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.wait()
    seen = threading.Event()
    dist.all_reduce(x, async_op=True).get_future().add_done_callback(lambda f: seen.set())
    assert seen.wait(10)
    synchronous = dist.BroadcastOptions()
    synchronous.asyncOp = False
    done = world.ours.broadcast([x], synchronous).get_future()
    assert done.then(lambda f: f.value()[0] is x).wait()


@on_ranks(2, 3, 4)
def test_callbacks_may_call(world: World) -> None:
    """On every rank at another time, while the ranks' main programs continue: still all calls match."""
    n, chains = world.size, []
    for i in range(10):
        x = torch.full((50,), float(i))
        time.sleep(0.003 * ((i + world.rank) % 3))

        def add(future: Any, i: int = i) -> Any:
            y = future.value()[0] + 1
            time.sleep(0.002 * ((i * world.rank) % 3))
            if i % 2:
                dist.all_reduce(y)
            else:
                y = dist.all_reduce(y, async_op=True).get_future().wait()[0]
            if i % 3 == 0:
                parts = torch.empty(n)
                dist.all_to_all_single(parts, torch.full((n,), float(i)))
                assert (parts == i).all()
            # Not coalesced: torch would add what another thread calls meanwhile to this thread's list.
            dist.all_reduce(y)
            dist.all_reduce(parts := torch.ones(3))
            assert parts[0] == n
            return y

        future = dist.all_reduce(x, async_op=True).get_future().then(add)
        if i % 3 == world.rank % 3:
            future.wait()  # complete here, not yet elsewhere, when the next callback is added
        chains.append(future.then(lambda f: f.value() * 2))
        dist.all_reduce(torch.ones(3))
    for i, chain in enumerate(chains):
        assert chain.wait().tolist() == [2.0 * (i * n + 1) * n * n] * 50


@on_ranks(1, 2, 3, gloo=True)
def test_through_the_engine(world: World) -> None:
    group = dist.new_group(backend="pycollective", pg_options=Options(engine=True))
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        xs = [torch.full((i + 1, 3), world.rank + i).to(dtype) for i in range(20)]
        right = [x.clone() for x in xs]
        works = [dist.all_reduce(x, group=group, async_op=True) for x in xs]
        works.append(dist.all_reduce(xs[0], group=group, async_op=True))  # the same memory: not before the first
        dist.all_reduce(xs[1], group=group)
        got = torch.empty(world.size * 3, dtype=dtype)
        all_gather_single(got, xs[2][0], group=group)  # past the engine, but not past what is in progress in it
        for work in works:
            work.wait()
        for i, x in enumerate(right):
            for _ in range(2 if i < 2 else 1):
                dist.all_reduce(x)
        assert all(map(torch.equal, xs, right))
        assert torch.equal(got, torch.cat([right[2][0]] * world.size))
    xs = [torch.ones(4, 3).t(), torch.ones(5)[::2], torch.ones(3)]
    with dist._coalescing_manager(group):
        for x in xs:
            dist.all_reduce(x, group=group)
    assert all((x == world.size).all() for x in xs)
    x = torch.full((4,), float(world.rank))
    dist.broadcast(x, world.size - 1, group=group)
    assert (x == world.size - 1).all()
    dist.all_reduce(x, dist.ReduceOp.AVG, group=group)
    dist.all_reduce(x, dist._make_nccl_premul_sum(2.0), group=group)
    assert (x == 2.0 * world.size * (world.size - 1)).all()
    dist.barrier(group)


@on_ranks(3)
def test_topologies(world: World) -> None:
    for topology in ("ring", "tree", "wheel(hub=1)", "halving_doubling"):
        group = dist.new_group(backend="pycollective", pg_options=Options(topology=topology))
        x = torch.full((1000,), world.rank + 1.0)
        with mock.patch.object(group.comm.backend, "run", wraps=group.comm.backend.run) as run:
            dist.all_reduce(x, group=group)
        assert (x == 6).all(), topology
        used = type(run.call_args.args[0].topology).__name__.lower()
        assert used.replace("_", "") == topology.partition("(")[0].replace("_", "")
        outs = torch.empty(9)
        all_gather_single(outs, x[:3].contiguous(), group=group)
        assert (outs == 6).all(), topology
        dist.all_to_all_single(outs, outs.clone(), group=group)
    with pytest.raises(ValueError, match="did you mean ring"):
        Options(topology="rimg")
    with pytest.raises(TypeError, match="Options, not dict"):
        dist.new_group(backend="pycollective", pg_options={"topology": "ring"})


@on_ranks(3)
def test_what_touches_the_same_tensor_is_done_in_order(world: World) -> None:
    """No waits in between: calls of one step, of several, coalesced, through the engine or not."""
    n = world.size
    for turn in range(20):
        if turn % 10 == 0:
            group = dist.new_group(backend="pycollective", pg_options=Options(engine=turn > 0))
        works: list[Any] = []
        x = torch.full((n, 50_000), float(world.rank + 1))
        y, z = torch.empty_like(x), torch.empty(n * n, 50_000)
        works.append(dist.all_reduce(x, group=group, async_op=True))  # 6 everywhere
        works.append(dist.all_to_all_single(y, x, group=group, async_op=True))  # 6
        works.append(dist.all_reduce(y, group=group, async_op=True))  # 18
        with dist._coalescing_manager(group, async_ops=True) as manager:
            dist.all_reduce(y, group=group)  # 54
            dist.all_reduce(x, group=group)  # 18
        works.append(manager)
        works.append(all_gather_single(z, y, group=group, async_op=True))  # 54
        dist.all_to_all_single(x, y, group=group)  # 54
        dist.all_reduce(x, group=group)  # 162
        works.append(dist.all_reduce(z, group=group, async_op=True))  # 162
        for work in works:
            work.wait()
        assert [t.unique().tolist() for t in (x, y, z)] == [[162.0], [54.0], [162.0]], turn


@on_ranks(2)
def test_tensors_of_calls_are_released_whether_anybody_waits_or_not(world: World) -> None:
    first = torch.ones(8)
    alive = weakref.ref(first)
    dist.all_reduce(first, async_op=True)
    del first
    last = torch.ones(8)
    for _ in range(1000):
        work = dist.all_reduce(last, op=dist.ReduceOp.AVG, async_op=True)
        time.sleep(0.0002)  # completed by the background thread
    work.wait()
    assert (last == 1).all() and alive() is None
    alive = []
    for i in range(6):
        x, outs = torch.ones(4), [torch.ones(4) for _ in range(world.size)]
        works = [dist.all_gather(outs, x, async_op=True), dist.all_reduce(x, async_op=True)]
        works[0].wait()
        works[1].wait(timedelta(seconds=20) if i % 2 else None)
        alive += [weakref.ref(outs[0]), weakref.ref(x)]
        del x, outs, works
    assert sum(each() is not None for each in alive) <= 2  # of the newest calls


@on_ranks(2)
def test_pending_calls_complete_when_the_group_is_destroyed(world: World) -> None:
    group = dist.new_group()
    x, y = torch.ones(100_000), torch.empty(100_000)
    works = [dist.all_reduce(x, group=group, async_op=True)]
    works.append(dist.all_to_all_single(y, x, group=group, async_op=True))
    if world.rank:
        time.sleep(0.2)
    dist.destroy_process_group(group)
    for work in works:
        work.wait()
    assert (x == 2).all() and (y == 2).all()
    with pytest.raises(RuntimeError, match="destroyed"):
        group.alltoall_base(y, x, [], []).wait()


@on_ranks(2)
def test_inference_mode(world: World) -> None:
    """Results of calls made in it are stored by other threads, too."""
    right = [[1.0, 1.0], [2.0, 2.0]]
    mine = torch.full((2,), world.rank + 1.0)
    ways = {
        "work": lambda work: work,
        "future": lambda work: work.get_future(),
        "callback": lambda work: work.get_future().then(lambda future: future.value()[0][0].add_(0)),
    }
    for name, way in ways.items():
        with torch.inference_mode():
            parts, swapped = ([torch.zeros(2) for _ in range(2)] for _ in range(2))  # of two storages: copied
            gathered = way(dist.all_gather(parts, mine, async_op=True))
            exchanged = way(dist.all_to_all(swapped, [mine, mine], async_op=True))
        gathered.wait()
        exchanged.wait()
        assert [x.tolist() for x in parts] == right and [x.tolist() for x in swapped] == right, name


@on_ranks(2)
def test_what_the_system_refuses_has_not_begun(world: World) -> None:
    """Calls that raised because no thread could be started would otherwise run later."""
    out, message = torch.zeros(2), torch.zeros(3)
    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        with pytest.raises(RuntimeError, match="can't start"):
            dist.all_to_all_single(out, torch.ones(2), async_op=True)
        with pytest.raises(RuntimeError, match="can't start"):
            dist.irecv(message, 1 - world.rank)
    dist.barrier()
    sent = dist.isend(torch.full((3,), 7.0), 1 - world.rank)
    received = torch.zeros(3)
    dist.recv(received, 1 - world.rank)
    sent.wait()
    dist.all_to_all_single(torch.zeros(2), torch.full((2,), 5.0))
    assert received.tolist() == [7.0] * 3 and out.tolist() == [0.0] * 2 and message.tolist() == [0.0] * 3

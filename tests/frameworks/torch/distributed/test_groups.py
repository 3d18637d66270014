"""Groups of some of the ranks, groups after groups, and torch's queries about them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import multiprocessing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from c10d import World, on_ranks
from speed import until

import pycollective

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402

from pycollective.torch.distributed import Options  # noqa: E402


@on_ranks(1, 2, 3, 4)
def test_every_subset(world: World) -> None:
    """All groups of all sizes, alive at the same time and used in turn."""
    ranks = range(world.size)
    members = [list(some) for k in ranks for some in itertools.combinations(ranks, k + 1)]
    groups = [(some, dist.new_group(some)) for some in members]
    for _ in range(2):
        for some, group in groups:
            if world.rank not in some:
                assert group is dist.GroupMember.NON_GROUP_MEMBER
                continue
            assert dist.get_backend(group) == "pycollective"
            x = torch.tensor([float(world.rank)])
            dist.all_reduce(x, group=group)
            assert x == sum(some)
            dist.broadcast(x.fill_(world.rank), some[-1], group=group)
            assert x == some[-1]
            found: list[Any] = [None] * len(some)
            dist.all_gather_object(found, world.rank, group=group)
            assert found == some
            if len(some) > 1:
                me = some.index(world.rank)
                work = dist.isend(torch.tensor([7.0 * world.rank]), some[me - 1], group=group)
                source = some[(me + 1) % len(some)]
                assert dist.recv(x, source, group=group) == source and x == 7 * source
                work.wait()
                assert dist.get_group_rank(group, world.rank) == me


@on_ranks(2, 4)
def test_what_torch_asks(world: World) -> None:
    assert dist.Backend.backend_capability["pycollective"] == ["cpu", "cuda"]
    group = dist.new_group(list(range(world.size - 1, -1, -1)), group_desc="backwards")
    for one in (world.ours, group):
        assert (one.rank(), one.size(), one.name()) == (dist.get_rank(one), world.size, "pycollective")
        assert dist.get_process_group_ranks(one) == list(range(world.size))
        assert dist.distributed_c10d._resolve_process_group(one.group_name) is one
        on_gpu = ["cuda"] * torch.cuda.is_available()
        assert dist.distributed_c10d._device_capability(one) == ["cpu", *on_gpu]
        one.get_group_store().set(f"{world.rank}", "here")
        one.get_group_store().wait([f"{rank}" for rank in range(world.size)])
        assert one._get_backend(torch.device("cpu")) is one
    assert group.group_name != world.ours.group_name and group.group_desc == "backwards"
    before = world.ours._get_sequence_number_for_group()
    dist.barrier()
    assert world.ours._get_sequence_number_for_group() == before + 1
    by_device = dist.new_group(backend="cpu:pycollective")
    dist.all_reduce(x := torch.ones(2), group=by_device)
    assert x.tolist() == [world.size] * 2 and by_device.name() == "pycollective"
    asked = (by_device.supports_splitting, by_device.supports_reconfigure, by_device.supports_window)
    assert not any(asked)  # new_group asks


def windows() -> int:
    """How many parts of this process's memory are shared with other ranks."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("pycollective")


@on_ranks(2)
def test_groups_come_and_go(world: World) -> None:
    store = world.ours.get_group_store()
    for engine in (False, True):
        counts = []
        for i in range(4):
            group = dist.new_group(pg_options=Options(engine=engine))
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            dist.all_to_all_single(x := torch.ones(2), torch.full((2,), float(i)), group=group)  # and its job queue
            dist.all_reduce(x, group=group, async_op=True).get_future().then(lambda f: None).wait()
            assert x.tolist() == [2.0 * i] * 2
            dist.destroy_process_group(group)
            with pytest.raises(RuntimeError, match=r"freed|destroyed"):
                group.allreduce([x]).wait()
            del group
            dist.barrier()
            counts.append(windows())
        until(lambda most=counts[0]: windows() <= most)  # a thread that ends late may still hold something
    dist.destroy_process_group()
    limit = timedelta(seconds=20)
    for i in range(3):  # under the same name, in the same store: as torchrun's ranks do it
        dist.init_process_group("pycollective", store=store, rank=world.rank, world_size=2, timeout=limit)
        x = torch.full((2,), float(i))
        dist.all_reduce(x)
        assert x.tolist() == [2.0 * i] * 2
        dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(c10d, "FlightRecorderHook"), reason="needs torch 2.15, where backends can be in Python")
@on_ranks(2)
def test_another_backend_for_other_devices(world: World) -> None:
    n, rank = world.size, world.rank
    group = dist.new_group(backend="cpu:pycollective,cuda:gloo")
    assert type(group) is dist.ProcessGroup
    x = torch.full((2,), float(rank))
    works = [dist.all_reduce(x, group=group, async_op=True), dist.broadcast(x, 0, group=group, async_op=True)]
    assert works[0].get_future().wait()[0] is not None and works[1].wait() and x.tolist() == [1.0, 1.0]
    gathered, part = torch.empty(2 * n), torch.empty(1)
    dist.all_gather_into_tensor(gathered, x + rank, group=group)
    assert gathered.tolist() == [1.0, 1.0, 2.0, 2.0]
    dist.reduce_scatter_tensor(part, gathered[1:3].contiguous(), group=group)
    assert part == 2 + 2 * rank
    dist.all_to_all_single(gathered, torch.arange(4.0) + 10 * rank, group=group)
    assert gathered.tolist() == [2.0 * rank, 2.0 * rank + 1, 2.0 * rank + 10, 2.0 * rank + 11]
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (2,))
    dist.all_reduce(sparse, group=group)
    assert sparse.to_dense().tolist() == [1.0, 1.0]
    found: list[Any] = [None] * n
    dist.all_gather_object(found, rank, group=group)
    assert found == [0, 1]
    sends = [dist.P2POp(dist.isend, torch.ones(1) * rank, 1 - rank, group)]
    for work in dist.batch_isend_irecv([*sends, dist.P2POp(dist.irecv, part, 1 - rank, group)]):
        work.wait()
    assert part == 1 - rank
    dist.monitored_barrier(group, timedelta(seconds=10))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1), process_group=group)
    model(torch.full((1, 2), float(rank))).sum().backward()
    assert model.module.weight.grad.tolist() == [[0.5, 0.5]]
    trace = json.loads(c10d._dump_fr_trace_json(backend="pycollective"))
    assert {"pycollective:all_reduce", "pycollective:broadcast"} <= {one["profiling_name"] for one in trace["entries"]}
    with pytest.raises(pycollective.MismatchError):
        dist.all_reduce(torch.ones(1 + rank), group=group)
        dist.barrier(group)


@on_ranks(3)
def test_barriers(world: World) -> None:
    dist.barrier()
    store = world.ours.get_group_store()
    for i in range(5):
        store.add("came", 1)
        dist.barrier()
        assert store.add("came", 0) == 3 * (i + 1)
        world.ours.monitored_barrier(timedelta(seconds=10))
    old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 14)
    with pytest.raises(ValueError, match="only implemented for GLOO") if old else contextlib.nullcontext():
        dist.monitored_barrier(timeout=timedelta(seconds=10))
    group = dist.new_group()
    if world.rank == 1:
        # torch's own tests look for these words.
        late = r" timeout .*Rank 1 timed out in monitoredBarrier.*not entered within 0\.3 s by rank 0, rank 2"
        with pytest.raises(RuntimeError, match=late):
            group.monitored_barrier(timedelta(seconds=0.3))
        world.ours.get_group_store().set("over", "yes")
    else:
        world.ours.get_group_store().wait(["over"])
        with pytest.raises(RuntimeError, match="rank"):
            group.monitored_barrier(timedelta(seconds=5))
    assert world.ours.errored() is None
    assert isinstance(group.errored(), pycollective.TimeoutError)
    dist.barrier()  # another group is still usable
    for wrong in (-1, timedelta(seconds=-1), float("nan"), "1"):
        with pytest.raises(ValueError, match="timeout must be a timedelta or a number of seconds"):
            world.ours.monitored_barrier(wrong)
    if world.rank == 1:
        with pytest.raises(pycollective.TimeoutError, match=r"not entered within 0 s by rank 0, rank 2"):
            world.ours.monitored_barrier(0)
        store.set("given up", "yes")
    store.wait(["given up"])
    with pytest.raises(RuntimeError, match="rank"):
        dist.barrier()


@on_ranks(2)
def test_a_forked_child_does_not_end_its_parents_groups(world: World) -> None:
    """DataLoader's workers are such children."""
    dist.all_to_all_single(x := torch.ones(2), torch.ones(2))  # the job queue, too
    work = dist.isend(torch.ones(3), 1 - world.rank)
    child = multiprocessing.get_context("fork").Process(target=gc.collect)
    child.start()
    child.join(20)
    assert child.exitcode == 0
    dist.recv(torch.zeros(3), 1 - world.rank)
    work.wait()
    dist.all_reduce(x)
    assert x.tolist() == [2.0, 2.0]

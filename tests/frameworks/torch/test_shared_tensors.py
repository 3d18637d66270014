"""Tensors that share_ has moved: all that refers to them follows, calls use them in place, their memory is freed."""

from __future__ import annotations

import copy
import gc
import logging
import os
import pickle
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from c10d import World, on_ranks  # noqa: E402
from c10d_training import flat  # noqa: E402
from processes import run  # noqa: E402
from speed import until  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from pycollective import Communicator, _core  # noqa: E402
from pycollective.torch import share_  # noqa: E402

COUNT = 30_000


def in_use() -> int:
    gc.collect()
    return _core.heap_bytes()[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_all_that_refers_to_a_tensor_follows_and_the_memory_is_freed_with_the_last(dtype: Any) -> None:
    before = in_use()
    x = torch.arange(4 * COUNT).to(dtype)
    reference, view, column = x.clone(), x[7:], x.view(COUNT, 4)[:, 1]
    share_([x, view])
    assert share_(column) is column
    assert in_use() - before >= x.nbytes
    view[0] = 1
    reference[7] = 1
    for now, then in ((x, reference), (view, reference[7:]), (column, reference.view(COUNT, 4)[:, 1])):
        assert torch.equal(now.float() if now.itemsize == 1 else now, then.float() if now.itemsize == 1 else then)
    del x, now
    assert in_use() > before
    assert view[0].item() == 1
    del view, column
    assert in_use() == before


def test_a_module_keeps_its_parameters_and_an_optimizer_steps_on_them() -> None:
    before = in_use()
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 300))
    model[2].weight = model[0].weight  # tied
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1, momentum=0.9) for each in (model, other)]
    x = torch.randn(10, 300)
    for step in range(4):
        for each, optimizer in zip((model, other), optimizers, strict=True):
            optimizer.zero_grad(set_to_none=False)
            each(x).square().sum().backward()
            optimizer.step()
        if step == 0:
            assert share_(model) is model
            assert in_use() - before >= 2 * 300 * 300 * 4, "the weight and its gradient"
        share_(model)  # again: nothing is left to move
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert model[2].weight is model[0].weight
    del model, each, optimizer, optimizers
    assert in_use() == before


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "numpy": (lambda _: torch.from_numpy(torch.ones(COUNT).numpy()), "NumPy"),
    "file": (lambda folder: torch.from_file(str(folder / "file"), shared=False, size=COUNT), "a file"),
    "shared file": (lambda folder: torch.from_file(str(folder / "file"), shared=True, size=COUNT), "a file"),
    "loaded file": (lambda folder: torch.load(folder / "saved", mmap=True), "a file"),
    "processes": (lambda _: torch.ones(COUNT).share_memory_(), "several processes"),
    "device": (lambda _: torch.ones(COUNT, device="meta"), "device meta"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_memory_that_others_may_hold_is_refused_before_anything_is_moved(kind: str, tmp_path: Path) -> None:
    make, reason = REFUSED[kind]
    before, x = in_use(), torch.ones(COUNT)
    (tmp_path / "file").write_bytes(x.numpy().tobytes())
    torch.save(x, tmp_path / "saved")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    with pytest.raises(ValueError, match=f"share_: .*{reason}"):
        share_([torch.ones(COUNT), make(tmp_path)])
    assert in_use() == before
    assert [path.stat().st_size for path in tmp_path.iterdir()] == sizes
    array = x.numpy()
    with pytest.raises(ValueError, match="NumPy"):
        share_(x)
    assert array.sum() == COUNT


@pytest.mark.parametrize("target", [3, "weights", [torch.ones(3), None], {"w": torch.ones(3)}])
def test_what_is_no_tensor_is_refused(target: Any) -> None:
    with pytest.raises(TypeError, match="target"):
        share_(target)


def test_small_and_sparse_tensors_stay() -> None:
    before = in_use()
    model = nn.Embedding(10_000, 4, sparse=True)
    model(torch.tensor([1, 2])).sum().backward()
    share_([torch.ones(100), torch.empty(0), torch.eye(300).to_sparse()])
    assert in_use() == before
    share_(model)
    assert model.weight.grad.is_sparse
    assert in_use() - before >= 160_000


def test_a_moved_tensor_is_neither_resized_nor_sent_but_copied_and_saved() -> None:
    x = share_(torch.arange(COUNT))
    storage = x.untyped_storage()
    for resize, size in ((storage.resize_, 0), (storage.resize_, 1 << 20), (x.detach().resize_, 1 << 20)):
        with pytest.raises(RuntimeError, match="not resizable"):
            resize(size)
    for shares in (lambda: ForkingPickler.dumps(x), x.share_memory_, storage.share_memory_):
        with pytest.raises(RuntimeError, match="clone it first"):
            shares()
    assert torch.equal(x, torch.arange(COUNT))
    before = in_use()
    for copied in (x.clone(), copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert torch.equal(copied, x)
        ForkingPickler.dumps(copied)
    assert in_use() == before


def test_a_child_has_its_own_copy() -> None:
    x = share_(torch.ones(COUNT))
    child = os.fork()
    if child == 0:
        x.fill_(2)
        os._exit(0 if bool((x == 2).all()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (x == 1).all()


@pytest.mark.parametrize("where", ["truncate", "statvfs"])
def test_nothing_refers_to_memory_that_torch_frees_after_an_interrupt(where: str) -> None:
    before = in_use()
    x = torch.ones(COUNT)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, where, mock.Mock(side_effect=KeyboardInterrupt))
        share_(x)
    assert x.sum() == COUNT
    del x
    assert in_use() == before


@contextmanager
def no_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_room() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        full = os.statvfs("/proc")  # of which no block is free
        patch.setattr(os, "statvfs", lambda _: full)
        yield


@pytest.mark.parametrize("lack", [no_descriptors, no_room])
def test_what_cannot_be_moved_is_used_as_usual(lack: Any, caplog: pytest.LogCaptureFixture) -> None:
    before, x = in_use(), torch.ones(COUNT)
    with lack(), caplog.at_level(logging.WARNING):
        assert share_(x) is x
    assert "used as usual" in caplog.text
    assert in_use() == before
    assert x.sum() == COUNT
    share_(x)
    assert in_use() > before


def in_calls(comm: Communicator, _: Connection) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x = (torch.arange(2 * COUNT * comm.size) % 50 + comm.rank).to(dtype)
        moved = share_(x.clone())
        for _ in range(2):
            comm.allreduce(moved.clone().copy_(x))
            comm.allreduce(moved)
            comm.barrier()
        places = [comm.backend.team.place_of(each.view(torch.uint8).numpy()) for each in (moved, moved[5:], x)]
        assert [*map(str, places)] == ["shared", "shared", "plain"]
        for collective in (comm.allreduce, comm.allgather, comm.alltoall, comm.scan, comm.reduce_scatter):
            assert torch.equal(collective(moved), collective(x))
        assert torch.equal(comm.allreduce(moved[64:]), comm.allreduce(x[64:]))
        for buffer in (x, moved):
            comm.broadcast(buffer, 1, out=buffer)
            comm.allreduce(buffer, out=buffer, topology="ring")
        assert torch.equal(x, moved)


@pytest.mark.parametrize("n", [2, 3])
def test_calls_use_them_in_place_with_the_same_bits(n: int) -> None:
    run(n, in_calls)


def network() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(30, 600), nn.Tanh(), nn.Linear(600, 300), nn.Tanh(), nn.Linear(300, 3))


def train(model: Any, rank: int, steps: int = 5, zero: bool = False) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    torch.manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=not zero)
        model(torch.randn(8, 30)).square().mean().backward()
        optimizer.step()
    return flat(model)


FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"bucket_cap_mb": 0.3},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True, "gradient_as_bucket_view": True},
)


@on_ranks(2, 3)
def test_data_parallel_trains_with_the_same_bits(world: World) -> None:
    for form in FORMS:
        before = in_use()
        models = [DistributedDataParallel(network(), **form) for _ in range(2)]
        assert share_(models[1]) is models[1]
        plain, moved = (train(model, world.rank) for model in models)
        assert torch.equal(plain, moved), form
        parameters = sum(p.nbytes for p in models[1].parameters() if p.nbytes >= 64 << 10)
        assert in_use() - before >= 2 * parameters, "parameters and buckets"
        del models
        dist.all_reduce(torch.ones(1))  # the group forgets completed calls at the next
        until(lambda before=before: in_use() <= before)  # its threads, a moment after a call


@on_ranks(2)
def test_data_parallel_with_kept_gradients_that_are_views_of_buckets(world: World) -> None:
    models = [DistributedDataParallel(network(), gradient_as_bucket_view=True) for _ in range(2)]
    share_(models[1])
    assert torch.equal(*(train(model, world.rank, zero=True) for model in models))


@on_ranks(2)
def test_data_parallel_with_uneven_inputs(world: World) -> None:
    model = share_(DistributedDataParallel(network()))
    with model.join():
        train(model, world.rank, steps=3 + 2 * world.rank)
    mine = flat(model)
    other = mine.clone()
    dist.broadcast(other, 0)
    assert torch.equal(mine, other)
    with pytest.raises(RuntimeError, match="divide_by_initial_world_size=True"), model.join(False):
        train(model, world.rank)


class Mixed(nn.Module):
    """Gradients of several types, one of them sparse."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(20_000, 2, sparse=True)
        self.parts = nn.ModuleList(nn.Linear(300, 300).to(t) for t in (torch.float64, torch.bfloat16, torch.float16))

    def forward(self, x: Any) -> Any:
        x = x.repeat(1, 10)
        rows = self.table((x.abs() * 1000).long() % 20_000).sum()
        return rows / 1000 + sum(part(x.to(part.weight.dtype)).double().mean() for part in self.parts)


@on_ranks(2, 3)
def test_data_parallel_of_every_type_has_the_same_bits(world: World) -> None:
    models = [DistributedDataParallel(Mixed()) for _ in range(2)]
    share_(models[1])
    plain, moved = (train(model, world.rank) for model in models)
    assert plain.isfinite().all()
    assert torch.equal(plain, moved)


@on_ranks(2)
def test_data_parallel_is_copied_and_saved_without_what_was_shared(world: World) -> None:
    model = share_(share_(DistributedDataParallel(network())))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        right = train(share_(copied), world.rank)
        assert right.isfinite().all()
    assert torch.equal(train(model, world.rank), right)


@on_ranks(2)
def test_data_parallel_that_finds_no_room_says_so_once_and_trains(world: World) -> None:
    warnings: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = warnings.append  # type: ignore[method-assign]
    logging.getLogger("pycollective").addHandler(handler)
    plain, model = (DistributedDataParallel(network()) for _ in range(2))
    with no_room():
        share_(model)
        number = len(warnings)
        moved = train(model, world.rank)
    assert number > 0
    assert len(warnings) == number + 1
    assert torch.equal(train(plain, world.rank), moved)
    logging.getLogger("pycollective").removeHandler(handler)


@on_ranks(2, gloo=True)
def test_data_parallel_that_cannot_be_shared_is_refused(world: World) -> None:
    before = in_use()
    with pytest.raises(ValueError, match="backend of this DistributedDataParallel"):
        share_(DistributedDataParallel(network(), process_group=world.gloo))
    hooked = share_(DistributedDataParallel(network()))
    del hooked
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    with pytest.raises(RuntimeError, match="only be called once"):
        share_(hooked)
    assert in_use() == before

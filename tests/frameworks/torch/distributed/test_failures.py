"""Errors are raised on every rank, with names: mismatches, late ranks, lost ranks, missing ranks."""

from __future__ import annotations

import errno
import os
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from c10d import World, job, on_ranks, run

import pycollective

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from pycollective.torch.distributed.health import Health  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("case", ["count", "dtype", "op", "root", "collective", "splits"])
def test_calls_that_do_not_match(case: str, later: bool) -> None:
    run(3, _mismatch, case, later, gloo=False)


def _mismatch(world: World, case: str, later: bool) -> None:
    odd = world.rank == 1
    x = torch.ones(4 + (odd and case == "count"), dtype=torch.float64 if odd and case == "dtype" else torch.float32)
    text = {
        "op": "max",
        "dtype": "float64",
        "root": "root=2",
        "collective": "broadcast",
        "splits": "rank 0 sends 1 elements to rank 1, which expects 2",
    }
    with pytest.raises(pycollective.MismatchError, match=text.get(case, "allreduce")):
        if case == "root":
            work = dist.broadcast(x, 2 if odd else 0, async_op=later)
        elif case == "collective" and odd:
            work = dist.broadcast(x, 0, async_op=later)
        elif case == "splits":
            rows = [2, 1, 1] if odd else [1, 1, 2]
            work = dist.all_to_all_single(torch.ones(sum(rows)), torch.ones(4), rows, [1, 1, 2], async_op=later)
        else:
            op = dist.ReduceOp.MAX if odd and case == "op" else dist.ReduceOp.SUM
            work = dist.all_reduce(x, op, async_op=later)
        if later:
            work.wait()
        dist.barrier()  # a rank that has left the call before the mismatch was detected gets the error in its next one


def test_a_late_rank_is_named() -> None:
    with job(3, _late) as ranks:
        outcomes = ranks.outcomes(20)
    for outcome in outcomes.values():
        assert outcome.error is None, outcome.trace


def _late(world: World) -> None:
    dist.barrier()
    world.ours.set_timeout(timedelta(seconds=1))
    store = world.ours.get_group_store()
    if world.rank == 2:
        store.wait(["named"])
        return
    with pytest.raises(pycollective.TimeoutError, match=r"not entered within 1 s by rank 2"):
        dist.all_reduce(torch.ones(3))
    store.set("named", "yes")
    with pytest.raises(RuntimeError):  # the group is unusable
        dist.all_reduce(torch.ones(3))


@pytest.mark.parametrize("way", ["waiting", "work", "future", "jobs", "later", "barrier"])
def test_a_killed_rank_is_named_by_all_others(way: str) -> None:
    with job(3, _killed, way) as ranks:
        for rank in range(3):
            assert ranks.hear(rank) == "ready"
        time.sleep(0.1)
        ranks.kill(1)
        outcomes = ranks.outcomes(20)
    for rank in (0, 2):
        assert outcomes[rank].error is None, outcomes[rank].trace
        assert outcomes[rank].value < 5


def _killed(world: World, way: str) -> float:
    dist.all_reduce(torch.ones(3))
    out = torch.ones(3)
    dist.all_to_all_single(out, torch.ones(3))
    world.link.send("ready")
    if world.rank == 1:
        time.sleep(60)
    start = time.monotonic()
    with pytest.raises(pycollective.PeerLostError, match="rank 1 is gone") as caught:
        if way == "waiting":
            dist.all_reduce(torch.ones(3))
        elif way == "work":
            dist.all_reduce(torch.ones(3), async_op=True).wait()
        elif way == "future":
            dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
        elif way == "later":
            dist.all_to_all_single(out, torch.ones(3), async_op=True).wait()
        elif way == "jobs":
            dist.all_to_all_single(out, torch.ones(3))
        else:
            dist.barrier()
    assert caught.value.rank == 1
    return time.monotonic() - start


@pytest.mark.parametrize("steps", [1, 4])
def test_a_rank_lost_during_backward(steps: int) -> None:
    """After 1 and after 4 steps: from the third on DistributedDataParallel reads the results in C++."""
    with job(3, _backward, steps) as ranks:
        for rank in range(3):
            assert ranks.hear(rank) == "ready"
        ranks.kill(2)
        outcomes = ranks.outcomes(30)
    for rank in (0, 1):
        assert outcomes[rank].error is None, outcomes[rank].trace


def _backward(world: World, steps: int) -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
    world.link.send("ready")
    if world.rank == 2:
        time.sleep(60)
    with pytest.raises(RuntimeError, match="rank 2 is gone"):
        for _ in range(100):
            model(torch.ones(2, 4)).sum().backward()


@on_ranks(2)
def test_errors_at_the_nth_step_of_training(world: World) -> None:
    """Readers in C++ (DistributedDataParallel, with and without hooks) and in Python get the error's text."""
    hooked = [_ddp(hook) for hook in (None, hooks.allreduce_hook, hooks.fp16_compress_hook)]
    ways = [*hooked, _ddp_powersgd, _sharded, _functional]
    cases = [(way, n) for i, way in enumerate(ways) for n in range(1 + i % 2, 7, 2)]
    for case, (way, n) in enumerate(cases):
        group = dist.new_group()
        step = way(group)
        for _ in range(n - 1):
            step()
        differs = case % 3 != 0  # else rank 0 gives the group up
        if not differs:
            dist.barrier()  # of another group: an abort also fails calls that a rank has yet to leave
        try:
            with pytest.raises(RuntimeError, match="differs between ranks" if differs else "has aborted|was freed"):
                if world.rank == 1:
                    step()
                    dist.barrier(group)
                elif differs:
                    dist.all_reduce(torch.ones(77), group=group)
                    dist.barrier(group)
                else:
                    group.abort()
                    dist.barrier(group)
        except BaseException as error:
            raise AssertionError(f"{way.__name__} in step {n}") from error


def _ddp(hook: Any) -> Any:
    def ddp(group: Any) -> Any:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=group)
        if hook is not None:
            model.register_comm_hook(group, hook)
        return lambda: model(torch.ones(2, 4)).sum().backward()

    return ddp


def _ddp_powersgd(group: Any) -> Any:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=group)
    model.register_comm_hook(powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook)
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _sharded(group: Any) -> Any:
    model = torch.nn.Linear(4, 2)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _functional(group: Any) -> Any:
    return lambda: functional.wait_tensor(functional.all_reduce(torch.ones(3), "sum", group))


@pytest.mark.parametrize("way", ["reduces", "exchanges", "receives"])
def test_abort_ends_the_calls_of_the_others(way: str) -> None:
    with job(3, _abort, way) as ranks:
        outcomes = ranks.outcomes(20)
    for outcome in outcomes.values():
        assert outcome.error is None, outcome.trace


def _abort(world: World, way: str) -> None:
    x = torch.ones(3)
    dist.all_to_all_single(x, torch.ones(3))
    if world.rank == 0:
        time.sleep(0.2)
        world.ours.abort()
        with pytest.raises(RuntimeError):
            dist.all_reduce(x)
        return
    if way == "receives":
        with pytest.raises(RuntimeError, match="rank 0 "):
            dist.recv(x, 0)
        return
    with pytest.raises(RuntimeError, match="rank 0 has aborted the process group"):
        if way == "reduces":
            dist.all_reduce(x)
        else:
            dist.all_to_all_single(x, torch.ones(3), async_op=True).wait()


def test_a_rank_that_does_not_join_is_named() -> None:
    with job(3, _stays_away, seconds=1.0) as ranks:
        outcomes = ranks.outcomes(20)
    for outcome in outcomes.values():
        assert outcome.error is None, outcome.trace


def _stays_away(world: World) -> None:
    if world.rank == 1:
        time.sleep(1.7)
        return
    with pytest.raises(pycollective.BootstrapError, match=r"rank 1 of 3 has not joined .* within 1 s"):
        dist.new_group(timeout=timedelta(seconds=1))


@pytest.mark.parametrize("unable", [0, 1])
def test_a_rank_that_cannot_join_tells_the_others(unable: int) -> None:
    run(3, _unable, unable, gloo=False, reuse=False)


def _unable(world: World, unable: int) -> None:
    from pycollective.comm.bootstrap import one_host

    def refused(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    if world.rank == unable:
        setattr(one_host, "listen" if unable == 0 else "dial", refused)
    start = time.monotonic()
    with pytest.raises(pycollective.BootstrapError, match=f"rank {unable} of 3: too many open files"):
        dist.new_group()
    assert time.monotonic() - start < 15, "as soon as it is known, not at the deadline"


def test_nothing_remains_of_ranks_that_end_silently() -> None:
    """The job itself checks /dev/shm."""
    with job(2, _vanish, leave="vanish") as ranks:
        ranks.outcomes(20)


def _vanish(world: World) -> None:
    dist.all_reduce(torch.ones(3))
    os._exit(0)


class _Group:
    """A backend of rank 1 of 3 of which rank 0 is found to have ended after some looks; never: None."""

    def __init__(self, looks: int | None) -> None:
        self.group = SimpleNamespace(size=3, rank=1)
        self.team = self
        self.looks, self.failure = looks, pycollective.Error("sound")

    def check(self) -> None:
        if self.looks:
            self.looks -= 1

    def gone(self, rank: int) -> bool:
        return rank == 0 and self.looks == 0

    def fail(self, error: pycollective.Error) -> None:
        self.failure = error


@pytest.mark.parametrize(("looks", "kind"), [(3, pycollective.PeerLostError), (None, pycollective.TimeoutError)])
def test_a_rendezvous_that_fails_ends_the_group_with_its_cause(
    looks: int | None, kind: type[pycollective.Error], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pycollective.torch.distributed.health._CLOSING", 0.1)
    group: Any = _Group(looks)
    Health(SimpleNamespace(backend=group)).give_up(pycollective.BootstrapError("rank 0 left the rendezvous"))  # type: ignore[arg-type]
    assert type(group.failure) is kind
    assert "rank 0" in str(group.failure)

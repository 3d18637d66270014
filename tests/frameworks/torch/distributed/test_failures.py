"""Errors are raised on every rank, with names: mismatches, late ranks, lost ranks, missing ranks."""

from __future__ import annotations

import errno
import itertools
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from c10d import World, job, naming, on_ranks
from processes import all_say

import pycollective

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
import torch.distributed._functional_collectives as functional  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks as hooks  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

from pycollective.torch.distributed import health  # noqa: E402


@on_ranks(3)
def test_calls_that_do_not_match(world: World) -> None:
    odd, op, x = world.rank == 1, dist.ReduceOp, torch.ones(4)
    rows = [2, 1, 1] if odd else [1, 1, 2]
    cases: dict[str, Any] = {
        "allreduce": lambda **options: dist.all_reduce(torch.ones(4 + odd), **options),
        "float64": lambda **options: dist.all_reduce(x.double() if odd else x, **options),
        "max": lambda **options: dist.all_reduce(x, op.MAX if odd else op.SUM, **options),
        "root=2": lambda **options: dist.broadcast(x, 2 if odd else 0, **options),
        "broadcast": lambda **options: dist.broadcast(x, 0, **options) if odd else dist.all_reduce(x, **options),
        "rank 0 sends 1 elements to rank 1, which expects 2": lambda **options: dist.all_to_all_single(
            torch.ones(4), torch.ones(4), rows, [1, 1, 2], **options
        ),
    }
    for (text, call), later in itertools.product(cases.items(), (False, True)):
        group = dist.new_group()
        with naming(text, later), pytest.raises(pycollective.MismatchError, match=text):
            work = call(group=group, async_op=later)
            if later:
                work.wait()
            dist.barrier(group)  # a rank that has left the call before the mismatch is detected gets the error here


@on_ranks(3)
def test_a_late_rank_is_named(world: World) -> None:
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


def lose(rank: int, body: Any, *arguments: Any) -> None:
    """Kills one of three ranks when all are ready; the others must end well."""
    with job(3, body, *arguments) as ranks:
        all_say(ranks, "ready")
        time.sleep(0.1)
        ranks.kill(rank)
        outcomes = ranks.outcomes(30)
    for other in {0, 1, 2} - {rank}:
        assert outcomes[other].error is None, outcomes[other].trace


WAYS: dict[str, Any] = {
    "waiting": lambda x: dist.all_reduce(x),
    "work": lambda x: dist.all_reduce(x, async_op=True).wait(),
    "future": lambda x: dist.all_reduce(x, async_op=True).get_future().wait(),
    "jobs": lambda x: dist.all_to_all_single(x, torch.ones(3)),
    "later": lambda x: dist.all_to_all_single(x, torch.ones(3), async_op=True).wait(),
    "barrier": lambda _: dist.barrier(),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_rank_is_named_by_all_others(way: str) -> None:
    lose(1, _killed, way)


def _killed(world: World, way: str) -> None:
    x = torch.ones(3)
    dist.all_reduce(x)
    dist.all_to_all_single(x, torch.ones(3))
    world.link.send("ready")
    if world.rank == 1:
        time.sleep(60)
    start = time.monotonic()
    with pytest.raises(pycollective.PeerLostError, match="rank 1 is gone") as caught:
        WAYS[way](x)
    assert caught.value.rank == 1 and time.monotonic() - start < 5


@pytest.mark.parametrize("steps", [1, 4])
def test_a_rank_lost_during_backward(steps: int) -> None:
    """After 1 and after 4 steps: from the third on DistributedDataParallel reads the results in C++."""
    lose(2, _backward, steps)


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
    powersgd = _ddp(powerSGD_hook, lambda group: PowerSGDState(group, start_powerSGD_iter=2))
    ways = [*hooked, powersgd, _sharded, _functional]
    cases = [(way, n) for i, way in enumerate(ways) for n in range(1 + i % 2, 7, 2)]
    for case, (way, n) in enumerate(cases):
        group = dist.new_group()
        step = way(group)
        for _ in range(n - 1):
            step()
        differs = case % 3 != 0  # else rank 0 gives the group up
        if not differs:
            dist.barrier()  # of another group: an abort also fails calls that a rank has yet to leave
        text = "differs between ranks" if differs else "has aborted|was freed"
        with naming(way.__name__, f"step {n}"), pytest.raises(RuntimeError, match=text):
            if world.rank == 1:
                step()
            elif differs:
                dist.all_reduce(torch.ones(77), group=group)
            else:
                group.abort()
            dist.barrier(group)


def _ddp(hook: Any, state: Any = lambda group: group) -> Any:
    def ddp(group: Any) -> Any:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2), process_group=group)
        if hook is not None:
            model.register_comm_hook(state(group), hook)
        return lambda: model(torch.ones(2, 4)).sum().backward()

    return ddp


def _sharded(group: Any) -> Any:
    model = torch.nn.Linear(4, 2)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    return lambda: model(torch.ones(2, 4)).sum().backward()


def _functional(group: Any) -> Any:
    return lambda: functional.wait_tensor(functional.all_reduce(torch.ones(3), "sum", group))


@on_ranks(3)
def test_abort_ends_the_calls_of_the_others(world: World) -> None:
    x = torch.ones(3)
    aborted = "rank 0 has aborted the process group"
    calls: dict[str, tuple[Any, str]] = {
        "reduces": (lambda group: dist.all_reduce(x, group=group), aborted),
        "exchanges": (lambda group: dist.all_to_all_single(x, x + 1, group=group, async_op=True).wait(), aborted),
        "receives": (lambda group: dist.recv(x, 0, group), "rank 0 "),
    }
    for way, (call, text) in calls.items():
        group = dist.new_group()
        dist.all_to_all_single(x, torch.ones(3), group=group)
        if world.rank == 0:
            time.sleep(0.2)
            group.abort()
            with pytest.raises(RuntimeError):
                dist.all_reduce(x, group=group)
        else:
            with naming(way), pytest.raises(RuntimeError, match=text):
                call(group)


@on_ranks(3, seconds=1.0)
def test_a_rank_that_does_not_join_is_named(world: World) -> None:
    if world.rank == 1:
        time.sleep(1.7)
        return
    with pytest.raises(pycollective.BootstrapError, match=r"rank 1 of 3 has not joined .* within 1 s"):
        dist.new_group(timeout=timedelta(seconds=1))


@on_ranks(3, reuse=False)
def test_a_rank_that_cannot_join_tells_the_others(world: World) -> None:
    from pycollective.comm.bootstrap import one_host

    refused = mock.Mock(side_effect=OSError(errno.EMFILE, "too many open files"))
    for unable, function in enumerate(("listen", "dial")):
        start = time.monotonic()
        with pytest.MonkeyPatch.context() as patch, naming(function):
            if world.rank == unable:
                patch.setattr(one_host, function, refused)
            with pytest.raises(pycollective.BootstrapError, match=f"rank {unable} of 3: too many open files"):
                dist.new_group()
        assert time.monotonic() - start < 15, "as soon as it is known, not at the deadline"


@pytest.mark.parametrize("gone", [True, False])
def test_a_rendezvous_that_fails_ends_the_group_with_its_cause(gone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is found to have ended at the second look, or never."""
    monkeypatch.setattr("pycollective.torch.distributed.health._CLOSING", 0.1)
    backend = mock.Mock(group=SimpleNamespace(size=3, rank=1))
    backend.team.gone.side_effect = lambda rank: gone and rank == 0 and backend.check.call_count > 1
    health.give_up(backend, pycollective.BootstrapError("rank 0 left the rendezvous"))
    (failure,) = backend.fail.call_args.args
    assert type(failure) is (pycollective.PeerLostError if gone else pycollective.TimeoutError)
    assert "rank 0" in str(failure)

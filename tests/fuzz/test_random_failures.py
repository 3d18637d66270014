"""Training that fails in a random step: every survivor gets an error, in Python or in C++, and no process crashes."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from seeds import choices, seeds

torch: Any = pytest.importorskip("torch")
import c10d  # noqa: E402
import hvd as horovod  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.fuzz]
FAULTS = ("kill", "exit", "differs", "late", "gives up")
"""What rank 1 does instead of its step."""
TRAININGS = ("data parallel", "with a hook", "sharded", "hvd", "hvd in groups")
TIMEOUT = "4"
"""Seconds of calls: for a rank that is late."""


@pytest.mark.parametrize("seed", seeds(4))
def test_a_training_that_fails(seed: str) -> None:
    choice = choices(seed)
    training, fault, step = choice.choice(TRAININGS), choice.choice(FAULTS), choice.randint(1, 6)
    ranks = choice.choice((2, 3))
    if training.startswith("hvd"):
        jobs = horovod.job(ranks, _hvd, training, fault, step, env={"PYCOLLECTIVE_TIMEOUT": TIMEOUT})
    else:
        jobs = c10d.job(ranks, _c10d, training, fault, step, seconds=float(TIMEOUT))
    what = f"{training}, rank 1: {fault} in step {step} of {ranks} ranks"
    with jobs as started:
        outcomes = started.outcomes(60)
    for rank in set(range(ranks)) - {1}:
        assert outcomes[rank].error is None, f"{what}: rank {rank}: {outcomes[rank].trace}"
        assert outcomes[rank].value is not None, f"{what}: rank {rank} ended without a result: {outcomes[rank]}"


def _hvd(hvd: Any, training: str, fault: str, step: int) -> str | None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 5), torch.nn.Linear(5, 2))
    more = {"groups": 2} if "groups" in training else {}
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **more)

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(3, 8)).sum().backward()
        optimizer.step()

    def differ() -> None:
        hvd.allreduce(torch.ones(3), name="alone")
        hvd.barrier()

    return _fail_at(hvd.rank(), step, train, fault, differ, hvd.shutdown)


def _c10d(world: c10d.World, training: str, fault: str, step: int) -> str | None:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Linear(8, 2)
    try:
        if training == "sharded":
            fully_shard(model, mesh=DeviceMesh.from_group(dist.group.WORLD, "cpu"))
        else:
            model = torch.nn.parallel.DistributedDataParallel(model)
            if training == "with a hook":
                model.register_comm_hook(None, fp16_compress_hook)
    except RuntimeError as error:
        if fault != "gives up":  # rank 1 may do so while this rank still makes the model
            raise
        return str(error)

    def train() -> None:
        model(torch.ones(3, 8)).sum().backward()

    return _fail_at(world.rank, step, train, fault, lambda: dist.all_reduce(torch.ones(77)), world.ours.abort)


def _fail_at(rank: int, step: int, train: Any, fault: str, differ: Any, give_up: Any) -> str | None:
    """The survivors' error. A rank that has all it needs may complete the step, and gets the error in a later one."""
    try:
        for _ in range(step - 1):
            train()
    except RuntimeError as error:
        if fault != "gives up":  # which ends calls in flight too, also those that the rank has completed itself
            raise
        return str(error)
    if rank == 1 and fault in ("kill", "exit"):
        os.kill(os.getpid(), signal.SIGKILL) if fault == "kill" else os._exit(0)
    try:
        if rank == 1 and fault == "gives up":
            give_up()
            return None
        if rank == 1 and fault == "late":
            time.sleep(float(TIMEOUT) + 2)
        if rank == 1 and fault == "differs":
            differ()
        for _ in range(5):
            train()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("raised nothing")

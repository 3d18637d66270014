"""A process group that spans hosts: under mpirun with two host names, and without MPI on virtual hosts."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import processes
import pytest
from c10d import begin_anew, torch_loaded

import pycollective
from launch import on_two_host_names

torch: Any = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from c10d_training import flat  # noqa: E402

TOKEN = {"PYCOLLECTIVE_TOKEN": "5c" * 16}

BODIES = {
    "collectives": ("averages_scaled_sums_and_complex_numbers", "one_tensor_forms", "parts_of_different_size"),
    "forms": ("tensors_that_are_not_contiguous", "objects"),
    "messages": ("tags_in_any_order", "from_the_first_sender"),
    "groups": ("every_subset",),
    "async": ("work",),
}
"""Tests of one host, by file, whose bodies run on two."""
RUN_BODIES = """
import inspect, os, sys, torch.distributed as dist, pycollective.torch
from c10d import World, begin_anew
from processes import _load
begin_anew()
dist.init_process_group("pycollective")
world = World(None, dist.get_rank(), dist.get_world_size(), gloo=False)
assert world.rank == int(os.environ["OMPI_COMM_WORLD_RANK"])
assert world.ours.comm.local_size == world.ours.comm.cross_size == 2
for name in sys.argv[1:]:
    inspect.unwrap(_load(*name.split("::")))(world)
dist.destroy_process_group()
print("fine", flush=True)
"""
# torch's own rendezvous: pycollective.init is not called.
UNDER_MPIRUN = """
import os, sys, torch, torch.distributed as dist
from pycollective.comm import world
job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
os.environ.update(job, TORCHELASTIC_USE_AGENT_STORE="True", RANK=os.environ["OMPI_COMM_WORLD_RANK"])
dist.init_process_group("pycollective")
for group in (None, dist.new_group([0, 1])):
    x = torch.full((5,), 1.0 + dist.get_rank())
    dist.all_reduce(x, group=group)
    assert x.tolist() == [3.0] * 5
assert not world.is_initialized()
dist.destroy_process_group()
print("fine", flush=True)
"""


def on_virtual_hosts(
    body: Callable[[], Any], ranks: int, hosts: int = 2, env: Sequence[Mapping[str, str]] = ({},)
) -> dict[int, Any]:
    """What the ranks return that are not killed: processes with torchrun's variables; env: more variables, by host."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)  # outlives the ranks, as torchrun's
    job = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    job |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    of_ranks = []
    for rank in range(ranks):
        host = rank * hosts // ranks
        of_ranks.append({**job, "RANK": str(rank), "PYCOLLECTIVE_HOST": f"virtual{host}", **env[host % len(env)]})
    with torch_loaded(), processes.Job(ranks, _enter, processes._place(body), of_ranks, leave="vanish") as started:
        outcomes = started.outcomes()
    for outcome in outcomes.values():
        assert outcome.error is None, outcome.trace
    return {rank: outcome.value for rank, outcome in sorted(outcomes.items()) if outcome.value is not None}


def _enter(comm: Any, link: Any, place: tuple[str, str], of_ranks: list[dict[str, str]]) -> Any:
    os.environ.update(of_ranks[comm.rank])
    pycollective.shutdown()  # the one in which the test reaches its ranks
    begin_anew()
    return processes._load(*place)()


def assert_fine(folder: Path, script: str, *words: str, ranks: int) -> None:
    """Every rank under mpirun prints that."""
    file = folder / "script.py"
    file.write_text(script)
    done = on_two_host_names([sys.executable, file, *words], folder, ranks=ranks, env=processes.IMPORTABLE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine") == ranks


@pytest.mark.mpi
def test_two_hosts(tmp_path: Path) -> None:
    """No host's name needs to resolve: ranks learn addresses."""
    here = Path(__file__).parent
    names = [f"{here}/test_{file}.py::test_{name}" for file, bodies in BODIES.items() for name in bodies]
    assert_fine(tmp_path, RUN_BODIES, *names, ranks=4)


@pytest.mark.mpi
def test_mpi_distributes_the_token(tmp_path: Path) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    assert_fine(tmp_path, UNDER_MPIRUN, str(store.port), ranks=2)


def test_training_gives_the_bits_of_one_host() -> None:
    """Three ranks on one host, and on two that share a token."""
    weights = set()
    for hosts in (1, 2):
        for count, found in on_virtual_hosts(_training, ranks=3, hosts=hosts, env=[TOKEN]).values():
            assert count == hosts
            weights.add(found)
    assert len(weights) == 1


def _training() -> tuple[int, bytes]:
    dist.init_process_group("pycollective")
    layers = torch.nn.Linear(300, 200), torch.nn.Tanh(), torch.nn.Linear(200, 5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
    count = dist.group.WORLD.comm.backend.group.nodes.count
    dist.destroy_process_group()
    return count, flat(model).numpy().tobytes()


def test_a_lost_sender_on_another_host_is_named() -> None:
    assert on_virtual_hosts(_lost_sender, ranks=4) == dict.fromkeys(range(3), 3)


def _lost_sender() -> int | None:
    dist.init_process_group("pycollective")
    rank, out = dist.get_rank(), torch.zeros(1)
    if rank == 3:
        dist.send(torch.ones(1), 0)
        dist.recv(out, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        dist.recv(out, 3)
        dist.send(out, 3)
    with pytest.raises(pycollective.PeerLostError) as caught:
        dist.recv(out, 3, tag=5)
    return caught.value.rank


@pytest.mark.parametrize(
    ("env", "stated"),
    [
        ([TOKEN, {}], "PYCOLLECTIVE_TOKEN is not set for rank 1"),
        ([{}, TOKEN], "PYCOLLECTIVE_TOKEN is not set for rank 0"),
        ([TOKEN, {"PYCOLLECTIVE_TOKEN": "5d" * 16}], "PYCOLLECTIVE_TOKEN differs"),
    ],
)
def test_ranks_with_different_tokens_are_refused(env: list[dict[str, str]], stated: str) -> None:
    errors = on_virtual_hosts(_refused, ranks=2, env=env)
    assert len(errors) == 2 and all(stated in text for text in errors.values()), errors


def _refused() -> str:
    with pytest.raises(pycollective.BootstrapError) as caught:
        dist.init_process_group("pycollective")
    return str(caught.value)

"""GPU arrays of a communicator that spans hosts: half of the ranks appear to be on another machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import IMPORTABLE

from gpu.comm.nccl.test_nccl import NCCL
from launch import on_two_host_names

pytestmark = [pytest.mark.emulated, pytest.mark.mpi, pytest.mark.usefixtures("built")]

_HEAD = """
import gpu.emulation
gpu.emulation.install()
import sys, time, warnings
import numpy as np
import pycollective as pc
from gpu.device import get, put
from pycollective.comm.cuda.nccl import rail
comm = pc.init()
n, me = comm.size, comm.rank
def ranks(x): return [x + r for r in range(n)]
def is_(found, expected): assert np.array_equal(get(found), expected), (get(found), expected)
"""

_STAGES = """
rail.SMALL_BYTES, rail.TILE_BYTES = 64, 4096
stages = []
whole = rail._TiledAllreduce.allreduce
rail._TiledAllreduce.allreduce = lambda self, request: stages.append(request) or whole(self, request)
for count in (1000, 512, 5000, 1537):  # one tile, exactly one, several, and a remainder
    x = np.arange(count, dtype="f8") + me
    total = sum(ranks(np.arange(count, dtype="f8")))
    is_(comm.allreduce(put(x)), total)
    same = put(x)
    is_(comm.allreduce(same, out=same), total)
    is_(comm.allreduce(put(x), op="avg"), total / n)
    is_(comm.allreduce(put(x), op="max", topology="ring"), np.arange(count) + n - 1)
    is_(comm.allreduce(put(x), prescale=2.0, postscale=0.25), total / 2)
    least = np.minimum.reduce([(v % 8).astype("f2") for v in ranks(np.arange(count, dtype="f8"))])
    is_(comm.iallreduce(put((x % 8).astype("f2")), op="min").result(), least)
assert len(stages) == 24, len(stages)
x = np.arange(300) + me
total = sum(ranks(np.arange(300)))
is_(comm.allreduce(put(x), op="avg"), total // n)  # whole numbers: rounded once, by NCCL only
is_(comm.allreduce(put(x), op="bxor"), np.bitwise_xor.reduce(ranks(np.arange(300))))  # staged
is_(comm.allreduce(put(x.astype("i2"))), total)  # staged, too
assert len(stages) == 24, "these do not go in stages"
is_(comm.allreduce(put(x), topology="nccl"), total)
is_(comm.broadcast(put(x), root=2), np.arange(300) + 2)
is_(comm.allgather(put(x)), np.concatenate(ranks(np.arange(300))))
is_(comm.reduce_scatter(put(x)), np.array_split(total, n)[me])
is_(comm.alltoall(put(np.arange(8) + 10 * me)), [v + 10 * r for r in range(n) for v in (2 * me, 2 * me + 1)])
found = comm.reduce(put(x), root=1)
assert np.array_equal(get(found), total) if me == 1 else found is None
assert comm.gpu.path.kind == "nccl" and "cuda-ipc within a host, and by NCCL between hosts" in comm.gpu.path.reason
assert comm.empty(4, "f4", device="cuda").shape == (4,)
comm.check()
comm.barrier()
comm.free()
print("fine", flush=True)
"""

_ENGINE = """
from pycollective.engine import Engine, Item
rail.SMALL_BYTES, rail.TILE_BYTES = 64, 4096
engine = Engine(comm)
shapes = [(5,), (300, 7), (4096,)]
for turn in range(2):
    arrays = [put(np.arange(np.prod(shape), dtype="f8").reshape(shape) + me) for shape in shapes]
    order = np.random.default_rng([turn, me]).permutation(len(shapes))
    works = {i: engine.submit([Item("allreduce", f"{turn}.{i}", arrays[i], op="avg")])[0] for i in order}
    for i, shape in enumerate(shapes):
        is_(works[i].wait(), np.arange(np.prod(shape)).reshape(shape) + (n - 1) / 2)
items = [Item("allreduce", f"group {i}", x, x) for i, x in enumerate(arrays)]
assert engine.run(items)[1] is arrays[1]
is_(arrays[0], sum(ranks(np.arange(5.0))))
assert engine._stream._buffer is not None, "a group goes through the fusion buffer"
(rows,) = engine.run([Item("allgather", "rows", put(np.full((me + 1, 2), me)))])
assert get(rows)[:, 0].tolist() == [r for r in range(n) for _ in range(r + 1)]
try:
    engine.run([Item("broadcast", "b", put(np.ones(3)) if me else np.ones(3), root=0)])
except pc.MismatchError as error:
    assert "on a GPU" in str(error), error
    print("fine", flush=True)
engine.close()
comm.free()
"""

_WITHOUT = """
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    x = np.random.default_rng(me).standard_normal(200_000)
    assert get(comm.allreduce(put(x))).tobytes() == comm.allreduce(x).tobytes()
assert any("no NCCL can be used" in str(w.message) and "staged" in str(w.message) for w in warned), warned
assert comm.gpu.path.kind == "host"
from pycollective.engine import Engine, Item
engine = Engine(comm)
found = engine.run([Item("allreduce", "a", put(x)), Item("allreduce", "b", put(x[:99]), op="avg")])
expected = engine.run([Item("allreduce", "c", x), Item("allreduce", "d", x[:99], op="avg")])
assert [get(a).tobytes() for a in found] == [b.tobytes() for b in expected]
engine.close()
try:
    comm.allreduce(put(x), topology="nccl")
except pc.CommunicatorError as error:
    assert "no NCCL can be used" in str(error)
    print("fine", flush=True)
"""

_TORCH = """
import torch, torch.distributed as dist, pycollective.torch
from gpu.torch import standin
standin.install()
torch.set_num_threads(1)
dist.init_process_group("pycollective")
n, me = dist.get_world_size(), dist.get_rank()
x = torch.randn(n * 30_000, generator=torch.Generator().manual_seed(me))
for later in (False, True):
    cpu, gpu = x.clone(), standin.put(x)
    for one in (cpu, gpu):
        work = dist.all_reduce(one, async_op=later)
        if later:
            work.wait()
    assert torch.equal(standin.get(gpu), cpu)
    parts = torch.empty(30_000), standin.put(torch.empty(30_000))
    wholes = torch.empty(n * 30_000), standin.put(torch.empty(n * 30_000))
    for one, part, whole in zip((cpu, gpu), parts, wholes):
        dist.reduce_scatter_tensor(part, one)
        dist.all_gather_into_tensor(whole, part)
    assert torch.equal(standin.get(wholes[1]), wholes[0])
dist.barrier()
assert dist.group.WORLD.comm.gpu.path.kind == "host"
print("fine", flush=True)
"""

_LOST = """
import os
a = put(np.ones(2_000_000))
comm.allreduce(a)
if me == 3:
    import threading
    threading.Timer(0.3, os._exit, [0]).start()
begin = time.monotonic()
try:
    while True:
        comm.allreduce(a, out=a, op="max")
except pc.PeerLostError as error:
    assert error.rank == 3 and time.monotonic() - begin < 3, error
try:
    comm.allreduce(a)
except pc.PeerLostError as error:
    assert "given up" in str(error), error
rest = comm.shrink()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    assert get(rest.allreduce(put(np.ones(5)))).tolist() == [3] * 5
print("fine", flush=True)
"""

_LATE = """
from pycollective.comm.cuda.team import DeviceTeam
rail.SMALL_BYTES = 64
at_once = DeviceTeam.abort  # late, so that after NCCL ends the host's kernels continue with an invalid result
DeviceTeam.abort = lambda self: (time.sleep(0.3), at_once(self))
comm.allreduce(put(np.ones(1000)))
if me == 3:
    time.sleep(5)
    print("fine", flush=True)
    sys.exit()
if me < 2:  # rank 2 has then given up, and rank 0 has its share of the invalid result
    time.sleep(0.5)
begin = time.monotonic()
try:
    comm.iallreduce(put(np.ones(1000)), timeout=1.0).wait()
except pc.Error as error:
    assert time.monotonic() - begin < 4, error
    print("fine", flush=True)
try:
    comm.allreduce(put(np.ones(1000)))
except pc.Error:
    time.sleep(max(0, 5 - (time.monotonic() - begin)))
"""


def run(script: str, folder: Path, *options: str, nccl: str = "/nowhere/libnccl.so.2", fine: int = 4) -> None:
    """Run a script on two ranks of either host; `fine`: the number of ranks that complete it."""
    file = folder / "case.py"
    file.write_text(script)
    environment = {**IMPORTABLE, **NCCL, "PYCOLLECTIVE_NCCL": nccl}
    done = on_two_host_names([sys.executable, file], folder, environment, timeout=150, options=options)
    assert done.stdout.count("fine") == fine, done.stdout + done.stderr
    assert done.returncode == 0 or fine < 4, done.stderr


CASES = {"in stages": _STAGES, "the engine fuses": _ENGINE, "a rank that does not come": _LATE}


@pytest.mark.parametrize("case", CASES)
def test_with_nccl(tmp_path: Path, case: str) -> None:
    """A rank that does not come, on its own host and on the other one: no rank waits forever."""
    run(_HEAD + CASES[case], tmp_path, nccl=NCCL["PYCOLLECTIVE_NCCL"])


def test_without_nccl(tmp_path: Path) -> None:
    """Staged through host memory, with a warning that gives the reason."""
    run(_HEAD + _WITHOUT, tmp_path)


@pytest.mark.torch
def test_torch_without_nccl(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run(_TORCH, tmp_path)


def test_a_rank_lost_during_a_staged_call(tmp_path: Path) -> None:
    """Its peers detect it, and continue without it."""
    run(_HEAD + _LOST, tmp_path, "--with-ft", "mpi", fine=3)  # or mpirun ends the others soon

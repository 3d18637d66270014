"""init() in all its forms, process sets, exits of ranks, and Horovod's variables."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hvd import run, with_ranks

from launch import find_mpirun, launch, run_command
from meeting import horovod_variables, on_threads

torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("n", [1, 2])
def test_variables_of_horovods_launchers(n: int, tmp_path: Path) -> None:
    more = {"HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_CONTROLLER": "gloo"}
    more |= {"HOROVOD_CPU_OPERATIONS": "gloo", "PMI_RANK": "0"}  # of a Slurm job around it
    outer = {k: v for k, v in os.environ.items() if not k.startswith("PYCOLLECTIVE_")}

    def rank(r: int) -> list[str]:
        env = outer | horovod_variables(r, n, **more)
        return run_command(sys.executable, "-c", textwrap.dedent(UNDER_HOROVOD), cwd=tmp_path, env=env).stdout.split()

    expected = [f"{r} {n} {r} {n} 0 1 {n * (n - 1) // 2} False".split() for r in range(n)]
    assert on_threads([partial(rank, r) for r in range(n)], 60) == expected


UNDER_HOROVOD = """
    import torch
    import pycollective.torch as hvd
    hvd.init()
    total = hvd.allreduce(torch.tensor(hvd.rank()), op=hvd.Sum).item()
    where = hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()
    print(hvd.rank(), hvd.size(), *where, total, hvd.mpi_enabled())
"""  # ends without shutdown(), as most scripts do


@pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")
def test_communicators_of_mpi4py() -> None:
    launch(4, ON_MPI, launcher="mpirun", loaded=["torch"], check=True)


ON_MPI = """
    from mpi4py import MPI
    import torch
    import pycollective.torch as hvd
    torch.set_num_threads(1)
    world, me = MPI.COMM_WORLD, MPI.COMM_WORLD.rank
    half = world.Split(me % 2, -me)  # in reverse order
    mine = hvd.ProcessSet(half)  # one on even ranks, another on odd ones
    def total(process_set=hvd.global_process_set):
        return hvd.allreduce(torch.tensor(me), op=hvd.Sum, process_set=process_set).item()
    hvd.init(world, process_sets=[mine])
    assert hvd.mpi_enabled() and hvd.mpi_built() and isinstance(hvd.mpi_threads_supported(), bool)
    assert mine.ranks == [me % 2, me % 2 + 2] and mine.included()
    assert hvd.global_process_set.mpi_comm == world
    assert (total(), total(mine)) == (6, 2 * (me % 2) + 2)
    hvd.shutdown()
    hvd.init(half)  # though the world was started before
    assert (hvd.size(), hvd.rank(), total()) == (2, 1 - me // 2, 2 * (me % 2) + 2)
    hvd.shutdown()
    within = hvd.ProcessSet(half.Split(half.rank))
    hvd.init(half, process_sets=[within])
    assert within.ranks == [hvd.rank()] and total(within) == me
    hvd.shutdown()
    hvd.init()
    assert hvd.size() == 4 and total() == 6 and hvd.global_process_set.mpi_comm is None
    hvd.shutdown()
    turned = hvd.ProcessSet(half)  # its ranks are MPI's, which init() renumbers
    hvd.init(comm=[3, 2, 1, 0], process_sets=[turned])
    assert turned.ranks == [1 - me % 2, 3 - me % 2] and total(turned) == 2 * (me % 2) + 2
"""


@with_ranks(3)
def test_arguments_of_init(hvd: Any) -> None:
    r = hvd.rank()
    hvd.init(comm=[0])  # already initialized: does nothing
    assert hvd.size() == 3
    with pytest.raises(ValueError, match="HOROVOD_DYNAMIC_PROCESS_SETS"):  # unset
        hvd.add_process_set([0])
    pending = hvd.allreduce_async(torch.ones(2), name="never") if r == 0 else 1
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized() and hvd.synchronize(pending) is None
    for attempt in (hvd.rank, lambda: hvd.allreduce(torch.ones(2)), lambda: hvd.start_timeline("file")):
        with pytest.raises(ValueError, match="not been initialized"):
            attempt()
    for wrong in ({"process_sets": "static"}, {"comm": 3.5}, {"comm": [0, 0]}, {"comm": [7]}):
        with pytest.raises(ValueError):
            hvd.init(**wrong)
    for sets, why in (
        ([hvd.ProcessSet([0, 3])], "different ranks"),
        ([hvd.ProcessSet([r % 2])], r"passed different.*\[0\], \[1\]"),
        ([hvd.global_process_set], "besides the global one"),
        ([[0, 1]], r"contains \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=why):
            hvd.init(process_sets=sets)
        assert not hvd.is_initialized()
    _duplicates(hvd)
    hvd.init(comm=[2, 0, 1])
    assert hvd.rank() == [1, 2, 0][r]
    assert hvd.allgather_object(r) == [2, 0, 1]
    hvd.shutdown()
    if r == 1:
        with pytest.raises(ValueError, match="rank 1 is not among"):
            hvd.init(comm=[0, 2])
    else:
        hvd.init(comm=[0, 2])
        assert hvd.allgather_object(r) == [0, 2]
        hvd.shutdown()
    for wrong_set in ([], [0, 0], [0.5], "01", 5):
        with pytest.raises(ValueError, match="a process set must"):
            hvd.ProcessSet(wrong_set)
    pair = hvd.ProcessSet([0, 1])
    assert (pair.size(), pair.rank(), pair.included()) == (None, None, None)


def _duplicates(hvd: Any) -> None:
    """As in Horovod: sets passed to init() twice are an error, after which it is initialized with the others."""
    reversed_all, pair, twin, one = (hvd.ProcessSet(ranks) for ranks in ([2, 1, 0], [0, 1], [1, 0], [2]))
    for sets, bad in (([reversed_all, pair], reversed_all), ([pair, twin, one], twin), ([pair, pair], pair)):
        with pytest.raises(ValueError, match="duplicates"):
            hvd.init(process_sets=sets)
        assert hvd.is_initialized() and bad.process_set_id is None
    hvd.init(process_sets=[one, twin])  # all are registered by now
    registered = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    assert registered == {0: [0, 1, 2], 1: [0, 1], 2: [2]}
    assert (one.process_set_id, twin.process_set_id) == (2, 1)
    mine = one if hvd.rank() == 2 else twin
    assert hvd.allgather(torch.tensor([hvd.rank()]), process_set=mine).tolist() == mine.ranks
    basics = hvd.mpi_ops._basics
    assert (basics._process_set_size(1), basics._process_set_rank(mine.process_set_id)) == (2, hvd.rank() % 2)
    with pytest.raises(ValueError, match=r"no process set 7; registered are \[0, 1, 2\]"):
        basics._process_set_size(7)
    hvd.shutdown()
    assert (one.process_set_id, twin.process_set_id, reversed_all.process_set_id) == (None, None, None)


@with_ranks(2, 3)
def test_a_rank_that_has_shut_down_is_an_internal_error_on_the_others(hvd: Any) -> None:
    x = hvd.allreduce(torch.ones(2))
    if hvd.rank() == 0:
        return
    calls = hvd.allreduce, lambda x, name: hvd.synchronize(hvd.allreduce_async(x, name=name))
    for later in (hvd.join, *(partial(call, x, name="late") for call in calls)):
        with pytest.raises(hvd.HorovodInternalError, match="rank 0 "):
            later()


def test_timeline_from_the_environment_and_at_run_time(tmp_path: Path) -> None:
    run(2, _timelines, str(tmp_path / "first.json"), env={"HOROVOD_TIMELINE": str(tmp_path / "whole.json")})
    run(2, _timelines, str(tmp_path / "second.json"), env={"HOROVOD_TIMELINE": "DYNAMIC"})
    found = {path.name: json.loads(path.read_text())["traceEvents"] for path in tmp_path.iterdir()}
    assert set(found) == {"whole.json", "second.json"}
    for events in found.values():
        assert {event["pid"] for event in events if event["name"] == "NEGOTIATE_ALLREDUCE"} == {0, 1}


def _timelines(hvd: Any, path: str) -> None:
    if os.environ["HOROVOD_TIMELINE"] == "DYNAMIC":
        hvd.stop_timeline()  # none yet
        hvd.start_timeline(path)
        hvd.allreduce(torch.ones(4), name="seen")
        hvd.stop_timeline()
    else:
        with pytest.raises(RuntimeError):
            hvd.start_timeline(path)
        hvd.allreduce(torch.ones(4), name="seen")


@with_ranks(2, 3, 4)
def test_after_a_join(hvd: Any) -> None:
    """Early ranks have made fewer unnamed calls than late ones; it does not matter afterwards."""
    n, r = hvd.size(), hvd.rank()
    for turn in range(2):
        for batch in range(r):
            assert hvd.allreduce(torch.full((2,), n)).tolist() == [n - batch] * 2  # who has joined adds zeros
        if r == n - 1:  # the others have joined, or will
            assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name=f"alone{turn}").tolist() == [1.0] * 3
            sparse = torch.eye(2).to_sparse()  # our own addition: Horovod rejects it
            total = hvd.sparse_allreduce_async(sparse, f"sparse{turn}", hvd.Sum)().to_dense()
            assert total.tolist() == [[1, 0], [0, 1]]
            for fails in (lambda: hvd.broadcast(torch.ones(2), r), lambda: hvd.allgather(torch.ones(2))):
                with pytest.raises(RuntimeError, match="needs all ranks, but rank 0 has joined"):
                    fails()
        left = hvd.allreduce_async(torch.full((2,), n))
        assert (hvd.join(-1) if turn else hvd.join()) == n - 1  # a device is accepted, and has no effect
        assert hvd.allgather(torch.tensor([r])).tolist() == list(range(n))
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [n, n]
        hvd.barrier()
        assert hvd.synchronize(left).tolist() == [n - r] * 2

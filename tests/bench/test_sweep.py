"""A real sweep, started from the command line."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from launch import CLI, needs, run_command, run_module
from pycollective.bench.peers.mpi import identify
from pycollective.bench.ranks.launch import Launcher, find_launcher
from pycollective.bench.ranks.world import first_rank, ranks_started
from pycollective.bench.result import read_json
from pycollective.bench.workload.plan import Budget

STAR = '''
from pycollective import topology

@topology("star_of_a_test", order="rank")
class StarOfATest:
    """Everything through rank 0."""

    def allreduce(self, p):
        for c in p.chunks(1):
            p[0, c] = p.sum(p[q, c] for q in p.ranks)
            for r in range(1, p.size):
                p[r, c] = p[0, c]
'''
QUICK = ["--quick", "--sizes", "4,64K", "--topology", "star.py:star_of_a_test", "--topology", "direct"]


def bench(folder: Path, *words: str, code: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
    (folder / "star.py").write_text(STAR)
    return run_module("pycollective.bench", *words, code=code, cwd=folder, **options)


@pytest.mark.parametrize("peers", ["none", pytest.param("mpi", marks=pytest.mark.mpi)])
def test_sweep_with_a_topology_from_a_file(tmp_path: Path, peers: str) -> None:
    if peers == "mpi" and not find_launcher().program:
        pytest.skip("no mpirun")
    done = bench(tmp_path, *QUICK, "--ranks", "2", "--peers", peers, "--json", "-", "--csv", "rows.csv")
    result = read_json(done.stdout)  # stdout contains nothing else
    ours = {(row.topology, row.path, row.size) for row in result.rows if row.library == "pycollective"}
    assert ours == set(product(("star_of_a_test", "direct"), ("windows", "plain"), (4, 65536)))
    others = set() if peers == "none" else {find_launcher().kind}
    assert {row.library for row in result.rows} == {"pycollective", *others}
    assert all(row.wrong == 0 and row.time_us > 0 and row.ranks == 2 for row in result.rows)
    assert len({len(row.rounds_us) for row in result.rows if row.group == 0}) == 1  # they are pairs
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + len(result.rows)


def test_the_options_of_nccl_tests(tmp_path: Path) -> None:
    """-b, -e and -f give the sizes, -n the timed calls, -w the warm-up calls and -c the checked ones."""
    words = ["direct", "--ranks", "2", "--peers", "none", "--paths", "windows", "--json", "--plot", "x.png"]
    done = bench(tmp_path, *words, "-b", "8", "-e", "32", "-f", "2", "-n", "7", "-w", "3", "-c", "2")
    rows = read_json(done.stdout).rows
    assert [row.size for row in rows] == [8, 16, 32]
    assert all((row.repetitions, len(row.rounds_us), row.wrong) == (7, 1, 0) for row in rows)
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    done = bench(tmp_path, *words, "-b", "8", "-e", "8", "-n", "1", "-w", "0", "-c", "0")
    assert [(row.size, row.wrong) for row in read_json(done.stdout).rows] == [(8, None)]


def test_a_topology_is_measured_on_the_ranks_that_it_supports(tmp_path: Path) -> None:
    (tmp_path / "even.py").write_text(STAR.replace('order="rank"', "ranks=2"))
    words = ["--quick", "--sizes", "4", "--topology", "even.py:star_of_a_test", "--peers", "none", "--json"]
    done = bench(tmp_path, *words, "--ranks", "2,3")
    assert {row.ranks for row in read_json(done.stdout).rows} == {2}
    assert "without star_of_a_test: star_of_a_test takes 2 ranks, not 3; the nearest supported: 2" in done.stderr
    done = bench(tmp_path, *words, "--ranks", "3", code=2)
    assert done.stderr == "✗ star_of_a_test takes 2 ranks, not 3; the nearest supported: 2\n"


def test_on_ranks_of_another_launcher(tmp_path: Path) -> None:
    (tmp_path / "star.py").write_text(STAR)
    words = [*CLI[:2], "pycollective.bench", *QUICK, "--peers", "none", "--json", "out.json"]
    done = run_command(*CLI, "run", "-np", "3", *words, cwd=tmp_path)
    assert done.stdout.count("no wrong elements") == 1  # only one rank prints
    assert {row.ranks for row in read_json((tmp_path / "out.json").read_text()).rows} == {3}


def test_a_topology_without_the_collective_is_skipped_with_a_note(tmp_path: Path) -> None:
    words = ["--collective", "allreduce,broadcast", "--ranks", "2", "--peers", "none", "--json", "out.json"]
    done = bench(tmp_path, *QUICK, *words)
    assert done.stdout.count("without star_of_a_test: it has no broadcast") == 1
    rows = read_json((tmp_path / "out.json").read_text()).rows
    assert {row.topology for row in rows if row.collective == "broadcast"} == {"direct"}


def test_a_topology_that_fails_is_a_failure_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(STAR.replace("for r in range(1, p.size)", "for r in range(1, 1)"))
    words = ["--topology", "bad.py:star_of_a_test", "--topology", "direct", "--ranks", "2", "--peers", "none"]
    done = bench(tmp_path, "--quick", "--sizes", "4", *words, "--json", "out.json", code=1)
    assert "without pycollective star_of_a_test, windows, 2 ranks" in done.stdout
    rows = read_json((tmp_path / "out.json").read_text()).rows
    assert {row.topology for row in rows} == {"direct"}  # the others are measured


def test_the_launcher_s_command_and_environment() -> None:
    command = Launcher("openmpi", "mpirun").command(4, ["x"])
    assert command[-3:] == ["-np", "4", "x"]
    assert "--oversubscribe" in command
    many = Launcher("openmpi", "mpirun").environment(10_000)
    assert many["OMPI_MCA_mpi_yield_when_idle"] == "1"
    assert "OMPI_MCA_mpi_yield_when_idle" not in Launcher("mpich", "mpirun").environment(10_000)
    own = Launcher("pycollective").command(2, ["x"])
    assert own[0] == sys.executable
    assert own[-4:] == ["run", "-np", "2", "x"]


def test_a_world_is_known_by_its_environment() -> None:
    assert ranks_started({}) == 0
    assert ranks_started({"OMPI_COMM_WORLD_SIZE": "4"}) == 4
    assert ranks_started({"PMI_SIZE": "3", "PYCOLLECTIVE_SIZE": "2"}) == 2
    assert [ranks_started({"SLURM_STEP_NUM_TASKS": n}) for n in ("1", "3")] == [0, 3]
    assert first_rank({})
    assert not first_rank({"PMI_RANK": "1"})


def test_libraries_are_distinguished() -> None:
    assert identify("Open MPI v5.0.11, package: Open MPI") == ("openmpi", "Open MPI 5.0.11")
    assert identify("Intel(R) MPI Library 2021.18.1 for Linux* OS") == ("impi", "Intel MPI 2021.18.1")
    assert identify("MPICH Version:      5.0.2\nMPICH Release date") == ("mpich", "MPICH 5.0.2")


@pytest.mark.mpi
@pytest.mark.torch
def test_every_collective_of_every_library_is_right(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None or not find_launcher().program:
        pytest.skip("needs torch and mpirun")
    calls = "allreduce,reduce,broadcast,reduce_scatter,allgather,gather,scatter,alltoall,sendrecv,barrier"
    words = ["--topology", "direct", "--sizes", "1000", "--dtype", "float32,int32", "--ranks", "3", "--root", "1"]
    bench(tmp_path, "--collective", calls, *words, "-n", "2", "-w", "1", "-c", "2", "--json", "out.json")
    data = json.loads((tmp_path / "out.json").read_text())
    assert len({(row["collective"], row["library"], row["type"]) for row in data["rows"]}) == 10 * 3 * 2
    assert not any(row["wrong"] for row in data["rows"])


@pytest.mark.parametrize("torch", ["missing", pytest.param("there", marks=pytest.mark.torch)])
def test_messages_barriers_and_tensors_under_conditions(tmp_path: Path, torch: str) -> None:
    if torch == "there":
        needs("torch")
    if torch == "missing":
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    words = ["default", "--collective", "broadcast,sendrecv,barrier", "--arrays", "numpy,torch", "--sizes", "1000,64K"]
    words += ["--ranks", "3", "--peers", "none", "--paths", "plain", "--align", "8", "--neighbours", "1"]
    words += ["-n", "5", "-w", "1", "-c", "1"]  # not --quick: beside a neighbour its turns are long
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    result = read_json(bench(tmp_path, *words, "--json", "-", env=path).stdout)
    kinds = ["numpy"] if torch == "missing" else ["numpy", "torch"]
    sized = [(call, size, kind) for call in ("broadcast", "sendrecv") for size in (1000, 65536) for kind in kinds]
    assert [(row.collective, row.size, row.arrays) for row in result.rows] == [*sized, ("barrier", 0, "numpy")]
    assert all(row.wrong == 0 and row.p99_us is not None and row.p99_us > 0 for row in result.rows)
    assert {tuple(row.offsets) for row in result.rows if row.size} == {(8, 8)}
    assert any("without torch tensors: torch is not installed" in note for note in result.notes) == (torch == "missing")


def test_turns_beside_neighbours_are_long() -> None:
    quick = Budget.quick()
    assert quick.beside(0) == quick
    assert quick.beside(1) == replace(quick, block_s=0.1, group_s=3 * quick.group_s)
    assert Budget(block_s=0.2).beside(2).block_s == 0.2


def test_without_fresh_inputs_calls_are_timed_as_a_block(tmp_path: Path) -> None:
    words = ["default", "--sizes", "4", "--ranks", "2", "--peers", "none", "--quick", "--no-fresh", "--json"]
    rows = read_json(bench(tmp_path, *words).stdout).rows
    assert [(row.path, row.p99_us) for row in rows] == [("windows", None), ("plain", None)]

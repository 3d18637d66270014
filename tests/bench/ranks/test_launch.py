"""Which mpirun and library are used for an MPI, and the busy neighbours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import alive
from speed import until

from pycollective.bench.ranks import launch
from pycollective.bench.ranks.launch import Launcher, busy_neighbours, find_launcher
from pycollective.bench.ranks.session import Session, busy_cores, worlds
from pycollective.bench.workload.plan import Options, Plan

VERSIONS = {"openmpi": "mpirun (Open MPI) 5.0.11", "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.18"}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Open MPI, which mpi4py uses, and Intel MPI, in folders of the PATH; MPICH is not installed."""
    for name, version in VERSIONS.items():
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "lib").mkdir()
        (tmp_path / name / "bin" / "mpirun").write_text(f'#!/bin/sh\necho "{version}"\n')
        (tmp_path / name / "bin" / "mpirun").chmod(0o755)
    (tmp_path / "impi" / "lib" / "libmpi.so.12").touch()
    monkeypatch.setenv("PATH", os.pathsep.join([*(str(tmp_path / name / "bin") for name in VERSIONS), "/usr/bin"]))
    monkeypatch.delenv("I_MPI_ROOT", raising=False)
    monkeypatch.setattr(launch, "_kind_of_mpi4py", lambda: "openmpi")
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    find_launcher.cache_clear()
    yield tmp_path
    find_launcher.cache_clear()


def test_an_mpi_is_found_by_its_mpirun(installed: Path) -> None:
    assert find_launcher() == Launcher("openmpi", str(installed / "openmpi/bin/mpirun"))
    assert find_launcher("openmpi") == find_launcher()
    found = find_launcher("impi")
    assert (found.kind, found.program) == ("impi", str(installed / "impi/bin/mpirun"))
    environment = found.environment(10_000)
    assert environment["MPI4PY_LIBMPI"] == str(installed / "impi/lib/libmpi.so.12")
    assert environment["PATH"].startswith(str(installed / "impi/bin"))
    assert (environment["I_MPI_PIN"], environment["I_MPI_THREAD_YIELD"]) == ("off", "2")
    assert "I_MPI_THREAD_YIELD" not in found.environment(1)
    assert "MPI4PY_LIBMPI" not in find_launcher().environment(2)
    missing = find_launcher("mpich")
    assert (missing.kind, missing.program) == ("pycollective", "")
    assert missing.note.startswith("no mpirun of MPICH is on the PATH")


def test_intel_mpi_is_also_found_by_its_own_variable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("I_MPI_ROOT", str(installed / "impi"))
    assert find_launcher("impi").program == str(installed / "impi/bin/mpirun")


@pytest.mark.usefixtures("installed")
def test_every_mpi_has_a_world_and_the_other_peers_are_in_the_first() -> None:
    notes: list[str] = []
    session = Session(lambda event: notes.append(event["text"]))
    sweep = Plan(sweep=Options(peers=("openmpi", "mpich", "gloo", "impi", "mpi")))
    assert [plan.wanted for plan in worlds(sweep, session)] == [("openmpi", "gloo"), ("impi",)]
    assert [note.partition(":")[0] for note in notes] == ["without mpich"]
    assert [plan.wanted for plan in worlds(Plan(peers=("mpi", "gloo")))] == [("mpi", "gloo")]
    with_oneccl = Plan(peers=("openmpi", "oneccl", "impi", "gloo"))
    assert [plan.wanted for plan in worlds(with_oneccl)] == [("openmpi", "gloo"), ("oneccl", "impi")]
    assert [plan.wanted for plan in worlds(Plan(peers=("oneccl", "gloo")))] == [("oneccl", "gloo")]
    assert [plan.wanted for plan in worlds(Plan(peers=()))] == [()]


def test_cores_that_others_use_are_measured_now() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as other:
        other.stdout.readline()
        assert busy_cores(0.5) > 0.2  # it may share its core
        other.kill()


def test_neighbours_have_the_lowest_priority_and_end_with_the_block() -> None:
    with busy_neighbours(2) as pids:
        assert len(set(pids)) == 2
        for pid in pids:
            until(lambda pid=pid: os.getpriority(os.PRIO_PROCESS, pid) == 19)
    assert not any(map(alive, pids))
    with busy_neighbours(0) as pids:
        assert pids == []


def test_neighbours_end_with_a_process_that_is_killed() -> None:
    code = (
        "from pycollective.bench.ranks.launch import busy_neighbours\nimport time\n"
        "with busy_neighbours(1) as pids:\n print(pids[0], flush=True)\n time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        until(lambda: os.getpriority(os.PRIO_PROCESS, pid) == 19)
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: not alive(pid))

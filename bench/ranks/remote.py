"""``pycollective bench -H``: ranks on several hosts, started by the mpirun of the MPI that is measured, or by ours."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Sequence

from pycollective.cli.launch.hosts import Host
from pycollective.cli.launch.remote_agent import forwarded_variables

from .launch import Launcher

__all__ = ["run_remote"]

_MORE = ("MPI4PY_LIBMPI", "GLOO_SOCKET_IFNAME")
"""Variables for the ranks besides those that ``pycollective run -H`` forwards."""


def run_remote(placed: Sequence[Host], shell: str, launcher: Launcher, words: Sequence[str]) -> int:
    """Run a command on ranks of several hosts, where it has the same path; returns the exit code.

    ``shell`` is the remote shell, as in "ssh -p 2222"; empty: the launcher's default.
    """
    environment = launcher.environment(max(host.count for host in placed))
    with tempfile.NamedTemporaryFile("w", prefix="pycollective-hosts-") as listed:
        listed.write("".join(f"{host.name}:{host.count}\n" for host in placed))
        listed.flush()
        ranks = sum(host.count for host in placed)
        if launcher.kind == "pycollective":
            command = launcher.command(ranks, ["--hostfile", listed.name, *(["--rsh", shell] if shell else []), *words])
        else:
            options = _OPTIONS[launcher.kind](placed, listed.name, shell, environment)
            program, *others = launcher.command(ranks, words)
            command = [program, *options, *others]
        return subprocess.run(command, env=environment, check=False).returncode


def _of_open_mpi(placed: Sequence[Host], listed: str, shell: str, environment: dict[str, str]) -> list[str]:
    names = [*forwarded_variables(environment, ()), *(name for name in _MORE if name in environment)]
    options = ["-H", ",".join(f"{host.name}:{host.count}" for host in placed)]
    options += ["--prtemca", "plm_ssh_agent", shell] if shell else []
    return options + [word for name in names for word in ("-x", name)]


def _of_hydra(placed: Sequence[Host], listed: str, shell: str, environment: dict[str, str]) -> list[str]:
    """Options of MPICH's mpirun, and of Intel's, which forward the environment."""
    options = ["-machinefile", listed]
    if shell:
        program, *arguments = shlex.split(shell)
        options += ["-bootstrap", "rsh", "-bootstrap-exec", program]  # "ssh" would add options of ssh
        for name in _HYDRA_ARGUMENTS:
            environment[name] = shlex.join(arguments)
    return options


_OPTIONS = {"openmpi": _of_open_mpi, "mpich": _of_hydra, "impi": _of_hydra}
_HYDRA_ARGUMENTS = ("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")

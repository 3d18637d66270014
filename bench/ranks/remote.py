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
_HYDRA_ARGUMENTS = ("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS")
"""Variables for arguments of the remote shell, of MPICH and of Intel MPI."""


def run_remote(placed: Sequence[Host], shell: str, launcher: Launcher, words: Sequence[str]) -> int:
    """Run a command on ranks of several hosts, where it has the same path; returns the exit code.

    ``shell`` is the remote shell, as in "ssh -p 2222"; empty: the launcher's default.
    """
    environment = launcher.environment(max(host.count for host in placed))
    more = [name for name in _MORE if name in environment]
    ranks = sum(host.count for host in placed)
    with tempfile.NamedTemporaryFile("w", prefix="pycollective-hosts-") as listed:
        listed.write("".join(f"{host.name}:{host.count}\n" for host in placed))
        listed.flush()
        if launcher.kind == "pycollective":
            options = ["--hostfile", listed.name, *_forward(more)] + (["--rsh", shell] if shell else [])
            command = launcher.command(ranks, [*options, *words])
        else:
            program, *others = launcher.command(ranks, words)
            if launcher.kind == "openmpi":
                options = ["-H", ",".join(f"{host.name}:{host.count}" for host in placed)]
                options += _forward([*forwarded_variables(environment, ()), *more])
                options += ["--prtemca", "plm_ssh_agent", shell] if shell else []
            else:  # MPICH and Intel MPI forward the environment
                options = ["-machinefile", listed.name, *_hydra_shell(shell, environment)]
            command = [program, *options, *others]
        return subprocess.run(command, env=environment, check=False).returncode


def _forward(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("-x", name)]


def _hydra_shell(shell: str, environment: dict[str, str]) -> list[str]:
    """The options for a remote shell, whose arguments go into the environment."""
    if not shell:
        return []
    program, *arguments = shlex.split(shell)
    environment.update(dict.fromkeys(_HYDRA_ARGUMENTS, shlex.join(arguments)))
    return ["-bootstrap", "rsh", "-bootstrap-exec", program]  # "ssh" would add options of ssh

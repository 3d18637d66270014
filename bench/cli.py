"""``python -m bench`` and ``pycollective bench``: the command line of the benchmark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pycollective.cli.commands import Command, choose, refusing
from pycollective.cli.options import Collective, Csv, Hostfile, Hosts, Json, Positional, Ranks, Root, Rsh, Topology

from .options import Neighbours, Quick, new_app

if TYPE_CHECKING:
    from .workload.plan import Budget, Options

__all__ = ["app", "bench"]

app = new_app()
_SIZES = ("4", "256M", "4")
"""From, to, factor."""


@app.command(cls=Command)
def bench(
    topology: Positional = None,
    named: Topology = None,
    collective: Collective = "allreduce",
    sizes: Annotated[
        str | None,
        typer.Option(help="FROM:TO:xFACTOR, FROM:TO:+STEP, or a list", show_default=":".join(_SIZES[:2]) + ":x4"),
    ] = None,
    least: Annotated[str | None, typer.Option("-b", "--minbytes", help="as nccl-tests: the smallest size")] = None,
    most: Annotated[str | None, typer.Option("-e", "--maxbytes", help="as nccl-tests: the largest size")] = None,
    factor: Annotated[
        int | None, typer.Option("-f", "--stepfactor", min=2, help="as nccl-tests: between sizes")
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option("-n", "--iters", min=1, help="as nccl-tests: timed calls of each, one after the other"),
    ] = None,
    warmup: Annotated[
        int | None, typer.Option("-w", "--warmup_iters", min=0, help="as nccl-tests: untimed calls before")
    ] = None,
    check: Annotated[
        int | None,
        typer.Option("-c", "--check", min=0, help="as nccl-tests: checked calls; 0: none"),
    ] = None,
    ranks: Ranks = "2,4,8",
    dtype: Annotated[str, typer.Option(help="element types, separated by commas")] = "float32",
    op: Annotated[str, typer.Option(help="operators, separated by commas")] = "sum",
    root: Root = 0,
    peers: Annotated[str, typer.Option(help="mpi, openmpi, mpich, impi, oneccl, gloo; 'none'")] = "mpi,gloo",
    paths: Annotated[str, typer.Option(help="memory of our arrays: windows, shared, plain")] = "windows,plain",
    arrays: Annotated[str, typer.Option(help="our arrays: numpy, torch (CPU tensors)")] = "numpy",
    in_place: Annotated[bool, typer.Option("--in-place", help="one array as input and output")] = False,
    align: Annotated[
        str, typer.Option(metavar="random|page|N", help="where arrays begin in a page: N bytes after its beginning")
    ] = "random",
    fresh: Annotated[bool, typer.Option(help="write the input before every timed call")] = True,
    neighbours: Neighbours = 0,
    quick: Quick = False,
    hosts: Hosts = None,
    hostfile: Hostfile = None,
    rsh: Rsh = "",
    json: Json = None,
    csv: Csv = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a .png, .svg or .pdf for each collective, or a folder for them"),
    ] = None,
) -> None:
    """Measure collectives x topologies x sizes x ranks x types, interleaved with Open MPI, MPICH, Intel MPI and Gloo.

    `--collective` also takes sendrecv (a message there and one back) and barrier. Without a topology: all that
    implement the collective; 'none': only the peers. Started alone it starts the ranks, one world for each rank count
    and MPI; started by mpirun, `pycollective run` or torchrun it uses the existing ranks. With -H or --hostfile it
    starts one world on these hosts, with the mpirun of the MPI among the peers; the first host writes the files.
    """
    from pycollective.cli import selection
    from pycollective.cli.launch.hosts import listed_hosts, place_ranks

    from . import sweep
    from .ranks.world import first_rank
    from .workload.plan import Conditions, Options

    outputs = sweep.Outputs(json, csv, plot)
    with refusing("matplotlib" if plot else ""):
        slots = listed_hosts(hosts, hostfile)
        placed = place_ranks(slots, None) if slots else []
        if rsh and not placed:
            raise ValueError("--rsh needs -H or --hostfile")
        options = Options(
            collectives=_list(collective),
            topologies=_expanded([*(topology or ()), *(named or ())]),
            sizes=_sizes(sizes, least, most, factor),
            ranks=(sum(host.count for host in placed),) if placed else tuple(selection.ranks(ranks)),
            dtypes=_list(dtype),
            ops=_list(op),
            peers=_list(peers),
            paths=_list(paths),
            root=root,
            in_place=in_place,
            arrays=_list(arrays),
            conditions=Conditions(fresh, align, neighbours),
            budget=_budget(quick, iterations, warmup, check).beside(neighbours),
        )
        options.check()
        _check_names(options)
        launcher = sweep.launcher_on_hosts(options) if placed else None
        if launcher is None and first_rank():
            outputs.check()
    if launcher is not None:
        raise typer.Exit(sweep.run_on_hosts(placed, rsh, launcher, options, outputs))
    if not sweep.run(options, outputs):
        raise typer.Exit(1)


def _budget(quick: bool, calls: int | None, warmup: int | None, checks: int | None) -> Budget:
    from .workload.plan import Budget

    if quick and calls is not None:
        raise ValueError("--quick and -n both set how much is measured: leave one out")
    return replace(Budget.quick() if quick else Budget(), calls=calls, warmup=warmup, checks=checks)


def _sizes(sizes: str | None, least: str | None, most: str | None, factor: int | None) -> str:
    """The sizes, by --sizes or by -b, -e and -f."""
    if sizes is not None:
        if (least, most, factor) != (None, None, None):
            raise ValueError("--sizes and -b, -e, -f both give the sizes: leave one out")
        return sizes
    return f"{least or _SIZES[0]}:{most or _SIZES[1]}:x{factor or _SIZES[2]}"


def _expanded(words: list[str]) -> tuple[str, ...]:
    """Topologies as the ranks find them: FILE.py stands for all in it, `all` for all."""
    from pycollective.cli import selection
    from pycollective.schedule import label

    found: list[str] = []
    for word in words:
        several = word == "all" or word.endswith(".py")
        prefix = f"{word}:" if word.endswith(".py") else ""
        found += [prefix + label(instance) for instance in selection.find(word)] if several else [word]
    return tuple(dict.fromkeys(found))


def _check_names(options: Options) -> None:
    """Check all names before any rank is started; ValueError (for a topology TopologyError) if one is unknown."""
    from .peers import PEERS
    from .peers.pycollective import find_topology, operators, unsupported
    from .ranks.world import ranks_started

    if "none" in options.peers:
        raise ValueError("--peers none stands alone")
    for what, names, known in (("peer", options.peers, PEERS), ("operator", options.ops, operators())):
        for name in names:
            choose(name, known, what)
    if options.topologies == ("none",):
        return
    counts = (ranks_started(),) if ranks_started() else options.ranks
    for topology in options.topologies:
        if topology == "none":
            raise ValueError("--topology none stands for the peers only: name no other topology")
        find_topology(topology)
        if all(unsupported(topology, count) for count in counts):
            raise ValueError(unsupported(topology, counts[0]))


def _list(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    return () if words == ("none",) else words

"""``python -m bench`` and ``pycollective bench``: the sweep on the command line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .plan import Budget, Options, Plan, short_options
from .world import first_rank, ranks_started

if TYPE_CHECKING:
    from rich.console import Console

    from .result import Result

__all__ = ["app", "bench"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    collective: Annotated[str, typer.Option(help="collectives, separated by commas")] = "allreduce",
    topology: Annotated[
        list[str] | None,
        typer.Option(help="a name or FILE:NAME, repeated; 'none': peers alone (default: all)"),
    ] = None,
    sizes: Annotated[str, typer.Option(help="FROM:TO:xFACTOR, FROM:TO:+STEP, or a list")] = "4:256M:x4",
    ranks: Annotated[str, typer.Option(help="rank counts, separated by commas")] = "2,4,8",
    dtype: Annotated[str, typer.Option(help="element types, separated by commas")] = "float32",
    op: Annotated[str, typer.Option(help="operators, separated by commas")] = "sum",
    root: Annotated[int, typer.Option(help="root of the collectives that have one")] = 0,
    peers: Annotated[str, typer.Option(help="mpi, openmpi, mpich, gloo; 'none'")] = "mpi,gloo",
    paths: Annotated[str, typer.Option(help="where our arrays live: windows, plain")] = "windows,plain",
    in_place: Annotated[bool, typer.Option("--in-place", help="one array as input and output")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="fewer and shorter rounds")] = False,
    json: Annotated[Path | None, typer.Option(help="write JSON; '-': to stdout, and nothing else")] = None,
    csv: Annotated[Path | None, typer.Option(help="write CSV; '-': to stdout, and nothing else")] = None,
    plot: Annotated[Path | None, typer.Option(help="a folder for one plot for each collective")] = None,
) -> None:
    """Measure collectives x topologies x sizes x ranks x types, interleaved with Open MPI or MPICH and Gloo.

    Started by itself it starts the ranks, one world for each rank count; started by mpirun, `pycollective
    run` or torchrun it uses the ranks that it finds.
    """
    options = Options(
        collectives=_list(collective),
        topologies=tuple(topology or ()),
        sizes=sizes,
        ranks=_ranks(ranks),
        dtypes=_list(dtype),
        ops=_list(op),
        peers=_list(peers),
        paths=_list(paths),
        root=root,
        in_place=in_place,
        budget=Budget.quick() if quick else Budget(),
    )
    try:
        options.check()
        _check_names(options)
        if first_rank():
            _check_outputs(json, csv, plot)
    except (ValueError, OSError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error
    _run(options, json, csv, plot)


def _check_names(options: Options) -> None:
    """Find all that is named, before any rank is started; ValueError (for a topology TopologyError) where it is not."""
    from .peers import PEERS
    from .peers.pycollective import find_topology, operators

    for what, names, known in (("peer", options.peers, PEERS), ("operator", options.ops, operators())):
        for name in names:
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}; there are {', '.join(known)}")
    if options.topologies != ("none",):
        for topology in options.topologies:
            find_topology(topology)


def _check_outputs(json: Path | None, csv: Path | None, plot: Path | None) -> None:
    """Nobody should measure for an hour and then have nowhere to write; OSError, ValueError or ImportError."""
    if json == csv == Path("-"):
        raise ValueError("one of --json and --csv can have stdout")
    for path in (json, csv):
        if path is not None and path != Path("-") and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            path.unlink()
        elif path is not None and path.is_file():
            path.open("a").close()
    if plot is not None:
        plot.mkdir(parents=True, exist_ok=True)
        import matplotlib  # noqa: F401


def _list(text: str) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    return () if words == ("none",) else words


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError as error:
        raise typer.BadParameter(f"rank counts are numbers separated by commas, not {text!r}") from error


def _run(options: Options, json: Path | None, csv: Path | None, plot: Path | None) -> None:
    from rich.console import Console

    from .launch import LaunchError
    from .session import Session, run_plans
    from .table import LiveTable, row_table

    started = ranks_started()
    if started:
        options = replace(options, ranks=(started,))
    for_machines = Path("-") in (json, csv)
    console = Console(stderr=for_machines, quiet=bool(started) and not first_rank())
    with LiveTable(console, len(options.ranks)) as live:
        session = Session(live)
        try:
            plan = Plan(sweep=options, budget=options.budget)
            shown = run_plans([(count, plan) for count in options.ranks], session)
        except LaunchError as error:
            console.print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(1) from error
    if not shown:
        return
    if not for_machines:
        _wide(console).print(row_table(session.rows, console.width))
    console.print(live.summary(), highlight=False)
    _write(session.result(short_options(options)), json, csv)
    if plot is not None:
        from .plot import plot_rows

        for path in plot_rows(session.rows, plot):
            console.print(f"plot: {path}", highlight=False)
    if session.failed or not session.rows or any(row.wrong for row in session.rows):
        raise typer.Exit(1)


def _wide(console: Console) -> Console:
    """Into a pipe or file the table keeps its columns instead of folding at 80 characters."""
    if not console.is_terminal:
        console.width = max(console.width, 140)
    return console


def _write(result: Result, json: Path | None, csv: Path | None) -> None:
    from .result import to_csv, to_json

    for path, text in ((json, to_json(result)), (csv, to_csv(result.rows))):
        if path == Path("-"):
            sys.stdout.write(text)
        elif path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

"""Notebook display of topologies, programs, schedules and simulations."""

from __future__ import annotations

from pycollective import notebook
from pycollective.errors import Error
from pycollective.schedule.compiler.schedule import Schedule
from pycollective.schedule.compiler.steps import describe_step
from pycollective.schedule.drawing import diagram
from pycollective.schedule.drawing.compiled import compiled
from pycollective.schedule.language import registry
from pycollective.schedule.language.program import Program
from pycollective.schedule.simulator.simulator import Simulation

RANKS = 8
"""Ranks in the picture of a topology."""
MOST_RANKS, MOST_STEPS = 16, 600
"""Limit for drawing a schedule: larger pictures are unreadable and take seconds."""
MOST_ROWS = 100
"""Maximum number of table rows."""


def can_draw(schedule: Schedule) -> bool:
    """Return whether a schedule is small enough for a picture, and pictures can be made."""
    steps = sum(len(rank.steps) for rank in schedule.ranks)
    return schedule.size <= MOST_RANKS and steps <= MOST_STEPS and notebook.can_draw()


@notebook.picture.register
def schedule_picture(schedule: Schedule) -> str | None:
    """The diagram as SVG; None if it cannot be drawn."""
    return notebook.svg(diagram.figure(schedule)) if can_draw(schedule) else None


@notebook.html.register
def schedule_table(schedule: Schedule) -> str | None:
    """All steps, rank by rank, with their waits. None if there is a picture: notebooks prefer HTML to it."""
    if can_draw(schedule):
        return None
    rows: list[tuple[object, ...]] = [
        (rank, number, describe_step(step), ", ".join(f"{wait.count} of rank {wait.peer}" for wait in step.waits))
        for rank, mine in enumerate(schedule.ranks)
        for number, step in enumerate(mine.steps, 1)
    ]
    return _cut(rows, ("rank", "step", "does", "after steps"), schedule.heading)


@notebook.html.register
def program_table(program: Program) -> str:
    """All statements, with their executing ranks and source lines."""
    rows: list[tuple[object, ...]] = []
    for number, one in enumerate(program.statements, 1):
        sources = " + ".join(f"p[{rank}, {one.chunk}]" for rank in one.sources)
        statement = f"p[{_ranks(one.destinations)}, {one.chunk}] = {sources}"
        rows.append(
            (number, statement, _ranks(one.destinations) if one.at is None else one.at, notebook.place(one.line))
        )
    caption = f"{program.collective}, {program.size} ranks, {len(rows)} statements"
    return _cut(rows, ("", "statement", "executed by", "line"), caption)


@notebook.html.register
def topology_view(shown: registry.Shown) -> str:
    """The properties of a topology, and the picture of its first collective that can be drawn."""
    topology = shown.topology
    row = registry.info(topology)
    name = row.name if isinstance(topology, str) else registry.label(topology)
    facts = [("collectives", ", ".join(row.collectives)), ("order of reduction", row.order)]
    if row.small:
        facts.append(("small variants", f"up to {row.small} bytes"))
    text = notebook.table([("", row.doc), *facts], caption=f"topology {name}")
    for collective in row.collectives:
        try:
            picture = schedule_picture(compiled(topology, collective, RANKS))
        except Error:  # it is unfinished, or does not support this many ranks
            continue
        return text + (picture or "")
    return text


@notebook.html.register
def simulation_table(simulation: Simulation) -> str:
    """Times and traffic."""
    slowest = max(range(simulation.ranks), key=simulation.finish.__getitem__)
    root = "" if simulation.root is None else f", root {simulation.root}"
    rows = [
        ("time", f"{simulation.seconds * 1e6:.4g} µs"),
        ("algbw", f"{simulation.algbw:.4g} GB/s"),
        ("busbw", f"{simulation.busbw:.4g} GB/s"),
        ("messages", f"{simulation.messages}"),
        ("bytes sent", f"{simulation.bytes_sent}, most by one rank {simulation.bytes_most}"),
        ("bytes between nodes", f"{simulation.bytes_between_nodes}"),
        ("last rank", f"{slowest}, through {len(simulation.critical_path)} steps that waited for one another"),
    ]
    variant = " (small)" if simulation.small else ""
    name = f"{simulation.topology} {simulation.collective}{variant}, {simulation.ranks} ranks{root}"
    return notebook.table(rows, caption=f"{name}, {simulation.nbytes} bytes, simulated")


def _cut(rows: list[tuple[object, ...]], header: tuple[str, ...], caption: str) -> str:
    shown = rows[:MOST_ROWS]
    if len(rows) > len(shown):
        shown = [*shown, ("…", f"{len(rows) - len(shown)} more", *[""] * (len(header) - 2))]
    return notebook.table(shown, header, caption)


def _ranks(ranks: tuple[int, ...]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else str(list(ranks))

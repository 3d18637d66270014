"""Write compiled schedules to files that the native tests read: one file per number of ranks.

    python dump_schedules.py FOLDER

Every topology x collective x placement, the variants for small messages, the first and the last root; of schedules
with equal steps only one. A schedule is a line `case NAME COLLECTIVE SIZE ROOT PLACEMENT` and then for each rank a
line: the number of words, and the words.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pycollective.schedule import COLLECTIVES, Placement, Schedule, compile, describe, get
from pycollective.schedule.compiler.p2p import compile_send

SIZES = (2, 3, 5)
NAMED = ("direct", "ring")
"""Topologies whose schedules the tests select by name."""
BITS = {Placement.STAGED: 0, Placement.WINDOW_IN: 1, Placement.WINDOW_OUT: 2, Placement.WINDOW: 3, Placement.INPLACE: 7}


def schedules(size: int) -> Iterator[Schedule]:
    """Everything that the package can compile for `size` ranks, except alltoall in place, which no call uses."""
    for row in describe():
        for collective in row.collectives:
            roots = (0, size - 1) if COLLECTIVES[collective].rooted else (None,)
            variants = (False, True) if hasattr(get(row.name), f"{collective}_small") else (False,)
            for placement in Placement:
                if collective == "alltoall" and placement.inplace:
                    continue
                for root in roots:
                    for small in variants:
                        yield compile(row.name, collective, size, root, placement, small)


def distinct(schedules: Iterable[Schedule]) -> Iterator[Schedule]:
    """Without those whose steps equal another topology's, such as those of `ordered` on one host; but all of NAMED."""
    seen = set()
    for schedule in schedules:
        tables = tuple(schedule.table(rank).tobytes() for rank in range(schedule.size))
        form = (schedule.collective, schedule.root, schedule.placement, tables)
        if form not in seen or schedule.topology in NAMED:
            yield schedule
        seen.add(form)


def text(schedule: Schedule, name: str = "", collective: str = "") -> str:
    small = "-small" if schedule.small else ""
    root = schedule.root or 0
    name = name or f"{schedule.topology}-{schedule.collective}{small}-{schedule.placement.name}-{root}"
    head = f"case {name} {collective or schedule.collective} {schedule.size} {root} {BITS[schedule.placement]}"
    tables = [schedule.table(rank) for rank in range(schedule.size)]
    return "\n".join([head, *(f"{len(table)} {' '.join(map(str, table))}" for table in tables)]) + "\n"


def dump(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for size in SIZES:
        (folder / f"ranks-{size}.txt").write_text("".join(map(text, distinct(schedules(size)))))
    sends = ((compile_send(eager=True), "eager"), (compile_send(eager=False), "rendezvous"))
    (folder / "sends.txt").write_text("".join(text(schedule, name, "send") for schedule, name in sends))


if __name__ == "__main__":
    dump(Path(sys.argv[1]))

"""Programs, the compiler that translates them to schedules, the verifier that proves these correct, the simulator.

Each name is loaded on first use: a call needs the language, and only ranks that compile need the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycollective.schedule.collectives import COLLECTIVES, Collective
    from pycollective.schedule.compiler.compiler import compile, compile_program, trace
    from pycollective.schedule.compiler.schedule import Placement, RankSchedule, Schedule, traffic
    from pycollective.schedule.compiler.steps import IN, OUT, Source, Step, Target, Wait
    from pycollective.schedule.language.program import Program
    from pycollective.schedule.language.rank_counts import multiple_of
    from pycollective.schedule.language.registry import (
        KiB,
        MiB,
        TopologyInfo,
        describe,
        get,
        info,
        label,
        load,
        names,
        topology,
    )
    from pycollective.schedule.simulator.network import Network
    from pycollective.schedule.simulator.simulator import Simulation, simulate
    from pycollective.schedule.simulator.timing import TimedStep
    from pycollective.schedule.verifier.verifier import Report, verify, verify_topology

_NAMES = {
    "collectives": "COLLECTIVES Collective",
    "compiler.compiler": "compile compile_program trace",
    "compiler.schedule": "Placement RankSchedule Schedule traffic",
    "compiler.steps": "IN OUT Source Step Target Wait",
    "language.program": "Program",
    "language.rank_counts": "multiple_of",
    "language.registry": "KiB MiB TopologyInfo describe get info label load names topology",
    "simulator.network": "Network",
    "simulator.simulator": "Simulation simulate",
    "simulator.timing": "TimedStep",
    "verifier.verifier": "Report verify verify_topology",
}
_HOMES = {name: file for file, names in _NAMES.items() for name in names.split()}
"""By name, the file that defines it."""

__all__ = [
    "COLLECTIVES",
    "IN",
    "OUT",
    "Collective",
    "KiB",
    "MiB",
    "Network",
    "Placement",
    "Program",
    "RankSchedule",
    "Report",
    "Schedule",
    "Simulation",
    "Source",
    "Step",
    "Target",
    "TimedStep",
    "TopologyInfo",
    "Wait",
    "compile",
    "compile_program",
    "describe",
    "get",
    "info",
    "label",
    "load",
    "multiple_of",
    "names",
    "simulate",
    "topology",
    "trace",
    "traffic",
    "verify",
    "verify_topology",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

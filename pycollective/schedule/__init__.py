"""Programs, the compiler that translates them to schedules, the verifier that proves these correct, the simulator.

Each name is loaded on first use: a call needs the language, and only ranks that compile need the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pycollective.schedule.collectives import COLLECTIVES, Collective
    from pycollective.schedule.compiler.compiler import compile, compile_program, trace
    from pycollective.schedule.compiler.schedule import Placement, RankSchedule, Schedule
    from pycollective.schedule.compiler.steps import IN, OUT, Source, Step, Target, Wait
    from pycollective.schedule.compiler.traffic import traffic
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

_HOMES = {
    "COLLECTIVES": "collectives",
    "Collective": "collectives",
    "IN": "compiler.steps",
    "KiB": "language.registry",
    "MiB": "language.registry",
    "Network": "simulator.network",
    "OUT": "compiler.steps",
    "Placement": "compiler.schedule",
    "Program": "language.program",
    "RankSchedule": "compiler.schedule",
    "Report": "verifier.verifier",
    "Schedule": "compiler.schedule",
    "Simulation": "simulator.simulator",
    "Source": "compiler.steps",
    "Step": "compiler.steps",
    "Target": "compiler.steps",
    "TimedStep": "simulator.timing",
    "TopologyInfo": "language.registry",
    "Wait": "compiler.steps",
    "compile": "compiler.compiler",
    "compile_program": "compiler.compiler",
    "describe": "language.registry",
    "get": "language.registry",
    "info": "language.registry",
    "label": "language.registry",
    "load": "language.registry",
    "multiple_of": "language.rank_counts",
    "names": "language.registry",
    "simulate": "simulator.simulator",
    "topology": "language.registry",
    "trace": "compiler.compiler",
    "traffic": "compiler.traffic",
    "verify": "verifier.verifier",
    "verify_topology": "verifier.verifier",
}
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

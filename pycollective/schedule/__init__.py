"""Programs, the compiler that makes schedules of them, and the verifier that proves schedules right."""

from pycollective.schedule.collectives import COLLECTIVES, Collective
from pycollective.schedule.compiler import compile, compile_program, trace
from pycollective.schedule.program import Program
from pycollective.schedule.registry import (
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
from pycollective.schedule.schedule import IN, OUT, Placement, RankSchedule, Schedule, Source, Step, Target, Wait
from pycollective.schedule.verifier import Report, verify, verify_topology

__all__ = [
    "COLLECTIVES",
    "IN",
    "OUT",
    "Collective",
    "KiB",
    "MiB",
    "Placement",
    "Program",
    "RankSchedule",
    "Report",
    "Schedule",
    "Source",
    "Step",
    "Target",
    "TopologyInfo",
    "Wait",
    "compile",
    "compile_program",
    "describe",
    "get",
    "info",
    "label",
    "load",
    "names",
    "topology",
    "trace",
    "verify",
    "verify_topology",
]

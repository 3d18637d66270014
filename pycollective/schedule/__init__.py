"""Programs, the compiler that translates them to schedules, the verifier that proves these correct, the simulator."""

from pycollective.schedule.collectives import COLLECTIVES, Collective
from pycollective.schedule.compiler.compiler import compile, compile_program, trace
from pycollective.schedule.compiler.schedule import (
    IN,
    OUT,
    Placement,
    RankSchedule,
    Schedule,
    Source,
    Step,
    Target,
    Wait,
)
from pycollective.schedule.drawing import display as display  # registers the notebook display of these classes
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
    "verify",
    "verify_topology",
]

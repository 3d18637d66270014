"""The core's part of a communicator, one object per rank."""

from __future__ import annotations

import os

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.comm.host.segments import setting
from pycollective.comm.planner import Planner


def make_team(segment: _core.Segment, group: Group, scratch: int) -> _core.Team:
    """The core's part of a communicator, in a segment shared by its ranks."""
    planner = Planner(group.rank, group.size)
    world = list(group.world_ranks)
    return _core.Team(segment, group.rank, group.size, scratch, world, group.name, group.threads, planner)


def set_patience(team: _core.Team, ranks_here: int) -> None:
    """How long waits spin before they yield and sleep; a rank that shares its core must not spin."""
    spin = setting("PYCOLLECTIVE_SPIN_US") if ranks_here <= (os.cpu_count() or 1) else 0.0
    team.set_patience(spin, setting("PYCOLLECTIVE_YIELD_US"))

"""The core's part of a communicator, one object per rank."""

from __future__ import annotations

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.comm.host.segments import setting
from pycollective.comm.planner import Planner


def make_team(segment: _core.Segment, group: Group, scratch: int) -> _core.Team:
    """The core's part of a communicator, in a segment shared by its ranks."""
    planner = Planner(group.rank, group.size)
    world = list(group.world_ranks)
    return _core.Team(segment, group.rank, group.size, scratch, world, group.name, group.threads, planner)


def set_patience(team: _core.Team, own_cores: bool) -> None:
    """How long waits spin before they yield and sleep.

    Args:
        team: this rank's part of a communicator.
        own_cores: whether every rank has a core; a rank that shares its core must not spin.
    """
    spin, awake = (setting("PYCOLLECTIVE_SPIN_US"), setting("PYCOLLECTIVE_AWAKE_US")) if own_cores else (0.0, 0.0)
    team.set_patience(spin, setting("PYCOLLECTIVE_YIELD_US"), awake)

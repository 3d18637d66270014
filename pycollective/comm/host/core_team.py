"""The core's part of a communicator, one object per rank."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.comm.host.segments import setting
from pycollective.comm.host.shared_tables import HostTables
from pycollective.comm.planner import Planner

Sockets = Mapping[int, Sequence[socket.socket]]
"""By rank: connections for collectives, for control messages, and for messages from rank to rank."""
Host = tuple[str, str]
"""Its address, which no other host of the job has, and its name."""
LANES = 3
DATA_LANE, CONTROL_LANE = 0, 1

SHARING_RANKS = 8
"""Communicators of at least this many processes compile each schedule once; for fewer it takes a few milliseconds."""


def segment_bytes(size: int, scratch: int, threads: bool) -> int:
    """Bytes of the segment that `make_team` needs; `scratch`: of each rank."""
    nbytes = _core.Team.segment_bytes(size, scratch)
    return _aligned(nbytes) + _core.TableDirectory.segment_bytes() if _shares(size, threads) else nbytes


def make_team(
    segment: _core.Segment,
    group: Group,
    scratch: int,
    others: Sockets | None = None,
    hosts: Sequence[Host] = (),
    ucx: _core.UcxWorker | None = None,
    own_cores: bool = True,
) -> _core.Team:
    """The core's part of a communicator, in a segment shared by its ranks of this host.

    Args:
        scratch: bytes of each rank's.
        others: the connections to ranks on other hosts; the team takes them over.
        hosts: if there are such, the host of every rank.
        ucx: connected with those ranks, instead of the connections for collectives.
        own_cores: whether every rank, on every host, has a core of its own.
    """
    planner = Planner(group.rank, group.size, group.nodes.of if others else (), own_cores, group.tuned)
    world = list(group.world_ranks)
    arguments = (segment, group.rank, group.size, scratch, world, group.name, group.threads, planner)
    if others:
        team = _core.Team(*arguments, list(group.nodes.ranks()), _descriptors(others, ucx), ucx)
        team.watch_hosts([address for address, _ in hosts], [name for _, name in hosts], list(group.nodes.of))
        return team
    team = _core.Team(*arguments)
    # Tables are passed as memfds, which no signal can leave behind: where these do not work, every rank compiles.
    if _shares(group.size, group.threads) and segment.token().startswith("memfd:"):
        offset = _aligned(_core.Team.segment_bytes(group.size, scratch))
        planner.load = HostTables(_core.TableDirectory(team, offset), group.size).load
    return team


def _descriptors(others: Sockets, ucx: _core.UcxWorker | None) -> list[tuple[int, tuple[int, int, int]]]:
    descriptors = []
    for rank, (data, control, messages) in others.items():
        if ucx is not None:
            data.close()
        descriptors.append((rank, (data.detach(), control.detach(), messages.detach())))
    return descriptors


def _shares(size: int, threads: bool) -> bool:
    return size >= SHARING_RANKS and not threads


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def set_patience(team: _core.Team, own_cores: bool) -> None:
    """How long waits spin before they yield and sleep: a rank that shares its core must not spin."""
    spin, awake = (setting("PYCOLLECTIVE_SPIN_US"), setting("PYCOLLECTIVE_AWAKE_US")) if own_cores else (0.0, 0.0)
    team.set_patience(spin, setting("PYCOLLECTIVE_YIELD_US"), awake)

"""The backend of ranks on several hosts: shared memory within a host, connections between them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence

import numpy as np

from pycollective import _core
from pycollective.comm.bootstrap.dialling import Endpoint
from pycollective.comm.explain import Explanation, explain_between_hosts
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import CONTROL_LANE, LANES, Sockets, make_team, segment_bytes, set_patience
from pycollective.comm.host.cores import are_enough, cpu_quota, usable_cores
from pycollective.comm.host.segments import Exchange, scratch_bytes, setting, share_segment
from pycollective.comm.host.team import HostTeam
from pycollective.comm.hosts.connections import connect_all
from pycollective.comm.hosts.network import Network
from pycollective.errors import CommunicatorError


class HostsTeam(HostTeam):
    """One rank's part of a communicator that spans hosts. A HostBackend.

    Args:
        team: the core's part.
        group: the ranks.
        own_cores: whether every rank of this host has a core of its own.
        network: of this process.
    """

    def __init__(self, team: _core.Team, group: Group, own_cores: bool, network: Network) -> None:
        super().__init__(team, group, own_cores)
        self.network = network

    # -- windows, which need shared memory -----------------------------------------------------------------------------

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        self.window_number(shape, str(dtype))
        return np.empty(shape, dtype)

    def share(self, nbytes: int) -> None:
        return None

    # -- other groups of ranks -----------------------------------------------------------------------------------------

    def split(self, members: Sequence[int], color: int | None, key: int, name: str) -> HostTeam | None:
        part = self.group.part(members, name) if members else None
        return connect(self.exchange, self.group.rank, members, part, self.network)

    def shrink(self, timeout: float) -> HostTeam:
        raise CommunicatorError("a communicator that spans hosts cannot be shrunk yet")

    # -- information ---------------------------------------------------------------------------------------------------

    def explain(self, collective: str, nbytes: int, topology: object) -> Explanation:
        return explain_between_hosts(self.group, self.own_cores, collective, nbytes, topology)


def connect(
    exchange: Exchange, position: int, members: Sequence[int], group: Group | None, network: Network
) -> HostTeam | None:
    """Collective: this rank's part of a new communicator of the ranks at `members`; None for a non-member.

    Args:
        exchange, position, members: as for share_segment. The ranks in the exchange may be on several hosts.
        group: of the members; None for a non-member.
        network: of this process.
    """
    mine = {
        "scratch": scratch_bytes(),
        "tiles": [setting(f"PYCOLLECTIVE_{name}TILE") for name in ("", "STAGED_", "HOSTS_")],
        "cores": sorted(usable_cores()),
        "endpoint": network.listener.endpoint.pack().hex(),
        "name": os.urandom(16).hex(),
    }
    received = [json.loads(text) for text in exchange(json.dumps(mine).encode())]
    chosen = received[members[0] if members else position]  # the first member's settings apply
    here = [members[rank] for rank in group.nodes.ranks()] if group is not None else []
    nbytes = segment_bytes(len(here), int(chosen["scratch"]), True) if here else 0
    segment = share_segment(exchange, position, here, nbytes, group is not None and group.threads)
    made: HostTeam | None = None
    if segment is not None and group is not None:
        own_cores = are_enough([frozenset(received[m]["cores"]) for m in here], cpu_quota())
        endpoints = [Endpoint.unpack(bytes.fromhex(received[m]["endpoint"])) for m in members]
        others = _connections(group, endpoints, bytes.fromhex(chosen["name"]), network)
        team = make_team(segment, group, int(chosen["scratch"]), others)
        set_patience(team, own_cores)
        on_host, staged, between_hosts = chosen["tiles"]
        team.tile_bytes = (between_hosts, between_hosts) if others else (on_host, staged)
        made = HostsTeam(team, group, own_cores, network) if others else HostTeam(team, group, own_cores)
    exchange(b"")  # every rank has recorded its presence
    if made is not None:
        made.team.watch_peers()
    return made


def _connections(group: Group, endpoints: Sequence[Endpoint], name: bytes, network: Network) -> Sockets:
    """With the group's ranks on other hosts. `name`: of the new communicator."""
    peers = [rank for rank in range(group.size) if group.nodes.of[rank] != group.nodes.node]
    if not peers:
        return {}
    deadline = time.monotonic() + network.timeout
    return connect_all(network.listener, endpoints, group.rank, peers, name, LANES, deadline, {CONTROL_LANE})

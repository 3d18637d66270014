"""Virtual hosts: ranks that are threads of one process and exchange messages as ranks of different machines do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

from pycollective import _core
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import LANES, make_team, segment_bytes, set_patience
from pycollective.comm.host.segments import scratch_bytes, setting
from pycollective.comm.host.team import HostTeam
from pycollective.comm.hosts.connections import Listener
from pycollective.comm.hosts.network import Network
from pycollective.comm.hosts.team import Contacts, HostsTeam

_SECONDS = 30.0


class VirtualNetwork:
    """The sockets of a world of threads.

    Args:
        hosts: each rank's host.
    """

    def __init__(self, hosts: Sequence[int]) -> None:
        token = secrets.token_bytes(16)
        self._networks = [Network(Listener("127.0.0.1", token, f"virtual{host}"), _SECONDS) for host in hosts]

    def backends(self, groups: Sequence[Group], own_cores: bool) -> list[HostTeam]:
        """Every rank's part of the communicator of all ranks."""
        scratch, hosts = scratch_bytes(), groups[0].nodes
        nbytes = [segment_bytes(len(hosts.ranks(host)), scratch, threads=True) for host in range(hosts.count)]
        segments = [_core.Segment.create("local", size) for size in nbytes]
        others: list[dict[int, list[socket.socket]]] = [{} for _ in groups]
        for rank, host in enumerate(hosts.of):
            for peer in range(rank):
                if hosts.of[peer] != host:
                    pairs = [socket.socketpair() for _ in range(LANES)]
                    others[rank][peer], others[peer][rank] = ([pair[i] for pair in pairs] for i in (0, 1))
        made: list[HostTeam] = []
        endpoints = [network.listener.endpoint for network in self._networks]
        name = secrets.token_bytes(16)
        names = [(endpoint.host, endpoint.host) for endpoint in endpoints]
        for group, sockets, network in zip(groups, others, self._networks, strict=True):
            team = make_team(segments[group.nodes.node], group, scratch, sockets, names)
            tile = setting("PYCOLLECTIVE_HOSTS_TILE")
            team.tile_bytes = (tile, tile)
            set_patience(team, own_cores)
            made.append(HostsTeam(team, group, own_cores, Contacts(network, endpoints, name)))
        return made

    def close(self) -> None:
        """Close the sockets to which ranks connect."""
        for network in self._networks:
            network.listener.close()

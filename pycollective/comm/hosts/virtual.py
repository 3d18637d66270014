"""Virtual hosts: ranks that are threads of one process and exchange messages as ranks of different machines do."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

from pycollective import _core
from pycollective.comm.bootstrap.sockets.this_host import loopback
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import LANES, make_team, segment_bytes
from pycollective.comm.host.segments import scratch_bytes, setting
from pycollective.comm.host.team import HostTeam
from pycollective.comm.hosts import ucx
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
        self._networks = [Network(Listener(loopback(), token, f"virtual{host}"), _SECONDS) for host in hosts]

    def backends(self, groups: Sequence[Group], own_cores: bool) -> list[HostTeam]:
        """Every rank's part of the communicator of all ranks."""
        scratch, hosts = scratch_bytes(), groups[0].nodes
        nbytes = [segment_bytes(len(hosts.ranks(host)), scratch, threads=True) for host in range(hosts.count)]
        segments = [_core.Segment.create("local", size) for size in nbytes]
        others: list[dict[int, list[socket.socket]]] = [{} for _ in groups]
        pairs = [(rank, peer) for rank in range(len(hosts.of)) for peer in range(rank)]
        pairs = [(rank, peer) for rank, peer in pairs if hosts.of[rank] != hosts.of[peer]]
        for rank, peer in pairs:
            ends = [socket.socketpair() for _ in range(LANES)]
            others[rank][peer], others[peer][rank] = ([pair[i] for pair in ends] for i in (0, 1))
        over = ucx.choose([ucx.offer(loopback())], [socket.gethostname()])
        workers: Sequence[_core.UcxWorker | None] = [None] * len(groups)
        if over:
            workers = ucx.connect_threads(over, loopback(), pairs, len(groups))
        made: list[HostTeam] = []
        endpoints = [network.listener.endpoint for network in self._networks]
        name = secrets.token_bytes(16)
        names = [(endpoint.host, endpoint.host) for endpoint in endpoints]
        for group, sockets, network, worker in zip(groups, others, self._networks, workers, strict=True):
            team = make_team(segments[group.nodes.node], group, scratch, sockets, names, worker, own_cores)
            tile = setting("PYCOLLECTIVE_HOSTS_TILE")
            team.tile_bytes = (tile, tile)
            made.append(HostsTeam(team, group, own_cores, own_cores, Contacts(network, endpoints, name), over))
        return made

    def close(self) -> None:
        for network in self._networks:
            network.listener.close()

"""The backend of ranks on several hosts: shared memory within a host, connections between them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pycollective import _core
from pycollective.comm.bootstrap import failure
from pycollective.comm.bootstrap.nodes import machine_key
from pycollective.comm.bootstrap.sockets.descriptors import are_used_up, raise_limit, refusal
from pycollective.comm.bootstrap.sockets.dialling import Endpoint
from pycollective.comm.bootstrap.sockets.this_host import host_name
from pycollective.comm.explain import Explanation, explain_between_hosts
from pycollective.comm.group import Group
from pycollective.comm.host.core_team import (
    CONTROL_LANE,
    DATA_LANE,
    LANES,
    Sockets,
    make_team,
    segment_bytes,
)
from pycollective.comm.host.cores import are_enough, cpu_quota, usable_cores
from pycollective.comm.host.segments import Exchange, scratch_bytes, setting, share_segment
from pycollective.comm.host.team import HostTeam
from pycollective.comm.hosts import ucx
from pycollective.comm.hosts.connections import connect_all
from pycollective.comm.hosts.network import Network
from pycollective.comm.hosts.shrink import GRACE_SECONDS, MemberLostError, SurvivorAgreement, agree
from pycollective.comm.planner import default_between_hosts
from pycollective.errors import BootstrapError, CommunicatorError, PeerLostError


@dataclass(frozen=True)
class Contacts:
    """How the ranks of a communicator can connect again."""

    network: Network
    endpoints: Sequence[Endpoint]
    """By rank."""
    name: bytes
    """Used for no other communicator."""


class HostsTeam(HostTeam):
    """One rank's part of a communicator that spans hosts.

    Args:
        own_cores: whether every rank of this host has a core of its own. all_own_cores: whether every rank has.
        over: what UCX, if it is the link, uses; see ucx.choose.
    """

    def __init__(
        self,
        team: _core.Team,
        group: Group,
        own_cores: bool,
        all_own_cores: bool,
        contacts: Contacts,
        over: str = "",
    ) -> None:
        super().__init__(team, group, own_cores)
        self.all_own_cores = all_own_cores
        self.network: Network | None = contacts.network
        self._endpoints, self._name = contacts.endpoints, contacts.name
        self.link = ucx.name_of(over, contacts.network.listener.address[0])
        self._shrunk = False

    # -- memory of all ranks -------------------------------------------------------------------------------------------

    def share(self, nbytes: int) -> None:
        return None

    # -- other groups of ranks -----------------------------------------------------------------------------------------

    def split(self, members: Sequence[int], name: str) -> HostTeam | None:
        part = self.group.part(members, name) if members else None
        network = self._own_network()
        try:
            seconds = self._seconds_left()
            return connect(self.exchange, self.group.rank, members, part, network, seconds, self._require_all)
        except BootstrapError as error:  # of this rank alone: the others would wait for it
            self.fail(error)
            raise

    def _require_all(self) -> None:
        """Raise what has ended this communicator, which it does if a rank's process has ended."""
        lost = self.lost_peer()
        if lost is not None:
            self.fail(PeerLostError(f"rank {lost} is gone (its process has ended)", lost))
        self.check()

    def shrink(self, timeout: float) -> HostTeam:
        self.team.require_open()
        if self._shrunk:  # a rank in two groups of survivors could bring a lost majority back
            raise CommunicatorError("the communicator was shrunk before: shrink the one that this returned")
        network = self._own_network()
        end = time.monotonic() + 2 * timeout + GRACE_SECONDS
        while True:
            with agree(self.team, self.group.rank, network.listener, self._endpoints, self._name, timeout) as found:
                try:
                    made = self._connect_survivors(found, network)
                    break
                except MemberLostError:
                    if time.monotonic() > end:
                        raise
                except CommunicatorError as error:
                    found.give_up(str(error))
                    raise
        left_out = set(range(self.group.size)) - set(found.members)
        self._shrunk = bool(left_out)
        for rank in left_out:
            self.team.expel(rank)
        return made

    def _connect_survivors(self, found: SurvivorAgreement, network: Network) -> HostTeam:
        part = self.group.part(found.members, f"{self.group.name}/shrunk")
        seconds = max(0.0, found.deadline - time.monotonic())

        def check() -> None:
            for member in found.members:
                if member != self.group.rank and self.team.gone(member):
                    raise found.gone(member)

        try:
            made = connect(found.exchange, part.rank, range(part.size), part, network, seconds, check)
        except BootstrapError as error:
            raise CommunicatorError(f"the survivors cannot connect: {error}") from None
        assert made is not None
        return made

    # -- shutdown ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.team.poisoned:
            failure.note_fault()
        super().close()
        self.network = None  # its port is closed with the last communicator, not when this object is collected

    def _own_network(self) -> Network:
        if self.network is None:
            raise CommunicatorError(f"communicator '{self.group.name}' has been freed")
        return self.network

    # -- information ---------------------------------------------------------------------------------------------------

    def explain(self, collective: str, nbytes: int, topology: object) -> Explanation:
        names = [endpoint.host for endpoint in self._endpoints]
        default = default_between_hosts(collective, nbytes, self.group.nodes.of, self.all_own_cores)
        own_cores, link = self.own_cores, self.link
        return explain_between_hosts(self.group, own_cores, names, link, default, collective, nbytes, topology)


def connect(
    exchange: Exchange,
    position: int,
    members: Sequence[int],
    group: Group | None,
    network: Network,
    timeout: float | None = None,
    check: Callable[[], None] = lambda: None,
) -> HostTeam | None:
    """Collective: this rank's part of a new communicator of the ranks at `members`; None for a non-member.

    Args:
        exchange, position, members: as for share_segment. The ranks in the exchange may be on several hosts.
        group: of the members; None for a non-member.
        timeout: seconds for connecting, if not the network's.
        check: called several times a second meanwhile; raises if a member will never connect.

    Raises:
        BootstrapError: this rank cannot connect, or does not fit the others; these are not told.
    """
    raise_limit()
    try:
        return _connect(exchange, position, members, group, network, timeout, check)
    except OSError as error:
        if not are_used_up(error):  # such as TimeoutError
            raise
        who = f"rank {position} on host {host_name()}"
        raise refusal(who, f"a communicator needs {LANES} for each rank on another host", error) from None


def _connect(
    exchange: Exchange,
    position: int,
    members: Sequence[int],
    group: Group | None,
    network: Network,
    timeout: float | None,
    check: Callable[[], None],
) -> HostTeam | None:
    mine: dict[str, Any] = {
        "version of pycollective": version("pycollective"),
        "PYCOLLECTIVE_HOST_TIMEOUT": setting("PYCOLLECTIVE_HOST_TIMEOUT"),
        "host": host_name(),
        "byte order": sys.byteorder,
        "scratch": scratch_bytes(),
        "tiles": [setting(f"PYCOLLECTIVE_{name}TILE") for name in ("", "STAGED_", "HOSTS_")],
        "cores": sorted(usable_cores()),
        "quota": cpu_quota(),
        "machine": machine_key(),
        "endpoint": network.listener.endpoint.pack().hex(),
        "link": ucx.offer(network.listener.address[0]),
        "name": os.urandom(16).hex(),
    }
    received = [json.loads(text) for text in exchange(json.dumps(mine).encode())]
    _require_alike(mine, received)
    all_endpoints = [Endpoint.unpack(bytes.fromhex(each["endpoint"])) for each in received]
    over = ucx.choose([each["link"] for each in received], [each.host for each in all_endpoints])
    chosen = received[members[0] if members else position]  # the first member's settings apply
    on_host = [members[rank] for rank in group.nodes.ranks()] if group is not None else []
    own_tables = group is not None and (group.threads or group.nodes.count > 1)  # not shared through the segment
    nbytes = segment_bytes(len(on_host), int(chosen["scratch"]), own_tables) if on_host else 0
    segment = share_segment(exchange, position, on_host, nbytes, group is not None and group.threads)
    made: HostTeam | None = None
    if segment is not None and group is not None:
        own_cores = _own_cores([received[m] for m in members], group.nodes.of)
        here, everywhere = own_cores[mine["machine"]], all(own_cores.values())
        endpoints = [all_endpoints[m] for m in members]
        contacts = Contacts(network, endpoints, bytes.fromhex(chosen["name"]))
        deadline = time.monotonic() + (network.timeout if timeout is None else timeout)
        others = _connections(group, contacts, deadline, check)
        worker = _ucx_links(over, group, contacts, others, deadline) if over and others else None
        team = make_team(
            segment, group, int(chosen["scratch"]), others, [(each.address, each.host) for each in endpoints], worker,
            everywhere,
        )  # fmt: skip
        windows, staged, between_hosts = chosen["tiles"]
        team.tile_bytes = (between_hosts, between_hosts) if others else (windows, staged)
        made = HostsTeam(team, group, here, everywhere, contacts, over) if others else HostTeam(team, group, here)
    exchange(b"")  # every rank has recorded its presence
    if made is not None:
        made.team.watch_peers()
    return made


def _own_cores(received: Sequence[dict[str, Any]], hosts: Sequence[int]) -> dict[str, bool]:
    """Map each machine to whether each of the ranks on it can have a core of its own.

    Hosts that are containers of one machine share its cores; each has its own CPU limit.
    """
    machines: dict[str, list[int]] = {}
    for rank, each in enumerate(received):
        machines.setdefault(each["machine"], []).append(rank)
    return {
        machine: are_enough([frozenset(received[rank]["cores"]) for rank in ranks], None)
        and all(hosts.count(hosts[rank]) <= (received[rank]["quota"] or len(hosts)) for rank in ranks)
        for machine, ranks in machines.items()
    }


def _require_alike(mine: dict[str, Any], received: Sequence[dict[str, Any]]) -> None:
    """Refuse ranks whose messages would mean something else, or whose heartbeats are too rare for others.

    Raises:
        BootstrapError: another version of the package, byte order, or PYCOLLECTIVE_HOST_TIMEOUT.
    """
    for rank, theirs in enumerate(received):
        for what in ("version of pycollective", "byte order", "PYCOLLECTIVE_HOST_TIMEOUT"):
            if theirs.get(what) != mine[what]:
                raise BootstrapError(
                    f"rank {rank} on host {theirs.get('host')} has the {what} {theirs.get(what)}, this rank on host "
                    f"{mine['host']} {mine[what]}"
                )


def _connections(group: Group, contacts: Contacts, deadline: float, check: Callable[[], None]) -> Sockets:
    peers = [rank for rank in range(group.size) if group.nodes.of[rank] != group.nodes.node]
    if not peers:
        return {}
    listener, endpoints, name = contacts.network.listener, contacts.endpoints, contacts.name
    return connect_all(listener, endpoints, group.rank, peers, name, LANES, deadline, {CONTROL_LANE}, check)


def _ucx_links(over: str, group: Group, contacts: Contacts, others: Sockets, deadline: float) -> _core.UcxWorker:
    """Make UCX links to these ranks; the connections are closed if there are none."""
    connections = {peer: lanes[DATA_LANE] for peer, lanes in others.items()}
    hosts = [endpoint.host for endpoint in contacts.endpoints]
    try:
        return ucx.connect(over, contacts.network.listener.address[0], group.rank, connections, hosts, deadline)
    except BaseException:
        for lanes in others.values():
            for connection in lanes:
                connection.close()
        raise

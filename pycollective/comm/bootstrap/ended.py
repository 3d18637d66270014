"""What a launcher tells the ranks of its job of one that has ended: in init() they would wait for it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from pycollective import checks
from pycollective.comm.bootstrap import one_host, tcp
from pycollective.comm.bootstrap.launchers import ACROSS_HOSTS
from pycollective.comm.bootstrap.rendezvous import refuse_newcomers, say_that_it_ended
from pycollective.comm.bootstrap.sockets.authentication import Claim, parse_token
from pycollective.comm.bootstrap.sockets.dialling import Endpoint, dial

_PAUSE = 0.2  # seconds between looks at whether rank 0 waits


def report(env: Mapping[str, str], reason: str) -> None:
    """Tell the ranks that wait for one that has ended, for as long as this process lives: for a thread of its own.

    Rank 0, where the others connect, is told; if it has ended itself, the others are, in its place.

    Args:
        env: the rank's environment. reason: the whole sentence.

    Raises:
        BootstrapError: another process is in its place.
    """
    name, rank, size = env["PYCOLLECTIVE_RENDEZVOUS"], int(env["PYCOLLECTIVE_RANK"]), int(env["PYCOLLECTIVE_SIZE"])
    tell = _across_hosts if name.startswith(ACROSS_HOSTS) else _on_one_host
    tell(env, name, rank, size, reason)


def _on_one_host(env: Mapping[str, str], name: str, rank: int, size: int, reason: str) -> None:
    addresses = one_host.addresses_of(f"run/{name}")
    if rank == 0:
        refuse_newcomers(one_host.listen(addresses), reason, math.inf, math.inf)
    while True:
        for address in addresses:
            peer = one_host.dial(address)
            if peer is not None:
                with peer:
                    if one_host.peer_uid(peer) == os.geteuid():
                        say_that_it_ended(peer, rank, size, reason)
        time.sleep(_PAUSE)


def _across_hosts(env: Mapping[str, str], name: str, rank: int, size: int, reason: str) -> None:
    token, where = parse_token(env["PYCOLLECTIVE_TOKEN"]), urlsplit(name)
    purpose = tcp.purpose_of(token, name)
    there = Endpoint(where.hostname or "", where.hostname or "", where.port or 0)
    if rank == 0:
        listener = tcp.listen(there.address, there.port)
        refuse_newcomers(tcp.lobby(listener, token, purpose), reason, math.inf, math.inf)
    while True:
        with dial(there, token, Claim(rank, 0, 0, purpose), time.monotonic() + checks.LONGEST) as peer:
            say_that_it_ended(peer, rank, size, reason)
        time.sleep(_PAUSE)

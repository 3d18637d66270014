"""Converts faults reported by kernels to errors raised on all ranks."""

from __future__ import annotations

from typing import Any

from pycollective import _core
from pycollective.comm.backend import HostBackend
from pycollective.errors import MismatchError, TimeoutError


def report_fault(host: HostBackend, team: Any, ledger: _core.Ledger) -> None:
    """If a kernel has aborted, poison the communicator: every rank's next call raises."""
    found = team.fault()
    if found is None or host.poisoned:
        return
    kind, rank, peer, _, expected, seen = found
    if kind == "mismatch":
        mine = ledger.text(rank, expected) or "another call"
        theirs = ledger.text(peer, seen) or "another call"
        host.fail(MismatchError(f"rank {rank} calls {mine}, rank {peer} calls {theirs}"), peer)
    elif kind == "dropped":
        call = ledger.text(rank, expected) or "a call"
        text = f"rank {peer} uses a window in {call} whose array rank {rank} has dropped"
        host.fail(MismatchError(f"{text}: keep the arrays of comm.empty on all ranks while one uses them"), peer)
    elif kind == "timeout":
        made = [ledger.calls(r) for r in range(host.group.size)]
        if min(made) < made[rank]:  # the rank with the fewest calls is the cause, even if the kernel waited for another
            peer = made.index(min(made))
        host.fail(TimeoutError(f"rank {rank} has waited on its GPU for rank {peer} until the deadline"), peer)
    team.abort()

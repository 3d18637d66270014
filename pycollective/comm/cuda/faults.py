"""What kernels report, as the errors that all ranks raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pycollective import _core

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator
    from pycollective.comm.cuda.planner import Planned


def raise_mismatch(comm: Communicator, team: Any, ledger: _core.Ledger, planned: Planned, other: int) -> None:
    """This rank's call is not the one that another rank has made: poison the communicator and raise.

    Raises:
        MismatchError: with both calls.
    """
    theirs = ledger.counterpart(other)
    _poison(comm, "mismatch", other, f"rank {comm.rank} calls {planned.text}, rank {other} calls {theirs}")
    team.abort()
    backend = comm._backend
    assert isinstance(backend, _core.Team)
    backend.require_sound()


def report_fault(comm: Communicator, team: Any, ledger: _core.Ledger) -> None:
    """If a kernel has given up, poison the communicator: every rank's next call raises."""
    found = team.fault()
    backend = comm._backend
    if found is None or not isinstance(backend, _core.Team) or backend.poisoned:
        return
    kind, rank, peer, _, expected, seen = found
    if kind == "mismatch":
        mine = ledger.text(rank, expected) or "another call"
        theirs = ledger.text(peer, seen) or "another call"
        _poison(comm, kind, peer, f"rank {rank} calls {mine}, rank {peer} calls {theirs}")
    elif kind == "dropped":
        call = ledger.text(rank, expected) or "a call"
        text = f"rank {peer} uses a window in {call} whose array rank {rank} has dropped"
        _poison(comm, "mismatch", peer, f"{text}: keep the arrays of comm.empty on all ranks while one uses them")
    elif kind == "timeout":
        made = [ledger.calls(r) for r in range(comm.size)]
        if min(made) < made[rank]:  # who has not come is the cause, though others may have been waited for
            peer = made.index(min(made))
        _poison(comm, kind, peer, f"rank {rank} has waited on its GPU for rank {peer} until the deadline")
    team.abort()


def _poison(comm: Communicator, kind: str, rank: int, text: str) -> None:
    backend = comm._backend
    assert isinstance(backend, _core.Team)
    if kind == "mismatch":
        backend.report_mismatch(rank, text)
    else:
        backend.report_timeout(rank, text)

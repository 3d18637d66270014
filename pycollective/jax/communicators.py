"""Which communicator and which operator a call means: this library's or mpi4py's."""

from __future__ import annotations

import functools
import sys
from typing import Any

from pycollective import checks
from pycollective.comm.arguments.operators import Op
from pycollective.comm.communicator import Communicator
from pycollective.comm.world import from_mpi
from pycollective.comm.world import init as init_communicator
from pycollective.dtypes import OPERATORS
from pycollective.hvd import basics
from pycollective.hvd.arguments import OPS


def communicator_of(comm: Any) -> Communicator:
    """The communicator that a call's `comm` means.

    Args:
        comm: None: all ranks, of init(); a pycollective.Communicator; an mpi4py communicator, which is converted once,
            collectively.

    Raises:
        TypeError: anything else.
    """
    if comm is None:
        return basics.world().comm if basics.is_initialized() else init_communicator()
    if isinstance(comm, Communicator):
        return comm
    if not hasattr(comm, "Get_rank"):
        checks.refuse_type("comm", "a pycollective.Communicator, an mpi4py communicator or None", comm)
    # Kept as an attribute of the MPI communicator, so that a later one with the same handle is not taken for it.
    found = comm.Get_attr(_attribute(comm.__class__))
    if found is None:
        found = from_mpi(comm)
        comm.Set_attr(_attribute(comm.__class__), found)
    assert isinstance(found, Communicator)
    return found


@functools.cache
def _attribute(kind: Any) -> int:
    number: int = kind.Create_keyval(nopython=False)
    return number


def operator_of(op: Any) -> str | Op:
    """The operator that a call's `op` means.

    Args:
        op: a name, as for Communicator.allreduce; an operator of this library; Horovod's (Sum, Average, ...); mpi4py's
            (MPI.SUM, ...).

    Raises:
        TypeError, ValueError: anything else.
    """
    if isinstance(op, Op):
        return op
    if isinstance(op, str):
        if op not in OPERATORS:
            checks.refuse_value("op", f"one of {', '.join(OPERATORS)}", op)
        return op
    if isinstance(op, int) and not isinstance(op, bool) and op in OPS:
        return OPS[op]
    mpi = sys.modules.get("mpi4py.MPI")  # None: not imported
    known = [name for name in OPERATORS if hasattr(mpi, name.upper())]
    found = next((name for name in known if getattr(mpi, name.upper()) == op), None)
    if found is None:
        checks.refuse_type(
            "op", f"an operator's name ({', '.join(OPERATORS)}), or one of mpi4py that has such a name", op
        )
    return found


def mpi_constant(name: str) -> Any:
    """A constant of mpi4py; None if it has not been imported."""
    return getattr(sys.modules.get("mpi4py.MPI"), name, None)

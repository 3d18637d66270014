"""Collective communication in which a topology is a dozen lines of Python.

    import pycollective as pc
    comm = pc.init()                        # under mpirun, torchrun, srun, `pycollective run`, or alone
    total = comm.allreduce(x)               # any NumPy array or torch tensor
    x = comm.empty(shape, "float32")        # an array that all ranks share: no copies
    comm.allreduce(x, out=x, topology="ring")

Importing this module defines names and loads nothing; NumPy, MPI and the native core come with the first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pycollective.errors import (
    BootstrapError,
    CommunicatorError,
    Error,
    MismatchError,
    NestedCallError,
    PeerLostError,
    ProgramError,
    TimeoutError,
    TopologyError,
    VerificationError,
)

if TYPE_CHECKING:
    from pycollective.comm.communicator import Communicator as Communicator
    from pycollective.comm.explain import Explanation as Explanation
    from pycollective.comm.handle import Handle as Handle
    from pycollective.comm.local import local_world as local_world
    from pycollective.comm.operators import Op as Op
    from pycollective.comm.operators import op as op
    from pycollective.comm.world import init as init
    from pycollective.comm.world import is_initialized as is_initialized
    from pycollective.comm.world import shutdown as shutdown
    from pycollective.comm.world import world as world
    from pycollective.schedule.registry import topology as topology

__version__ = "0.1.0"

_HOMES = {
    "Communicator": "comm.communicator",
    "Explanation": "comm.explain",
    "Handle": "comm.handle",
    "Op": "comm.operators",
    "init": "comm.world",
    "is_initialized": "comm.world",
    "local_world": "comm.local",
    "op": "comm.operators",
    "shutdown": "comm.world",
    "topology": "schedule.registry",
    "world": "comm.world",
}
"""Public names that are loaded when they are first used."""

_BLOCKING = (
    *("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "allgatherv", "gather", "scatter"),
    *("alltoall", "alltoallv", "barrier", "send", "recv"),
)
_ON_WORLD = frozenset((*_BLOCKING, *(f"i{name}" for name in _BLOCKING), "empty", "split", "dup", "group", "explain"))
"""Methods of the default communicator that are functions of this module too."""

_NUMBERS = ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size")

__all__ = [
    "BootstrapError",
    "CommunicatorError",
    "Error",
    "MismatchError",
    "NestedCallError",
    "PeerLostError",
    "ProgramError",
    "TimeoutError",
    "TopologyError",
    "VerificationError",
    *_HOMES,
    *_NUMBERS,
    *sorted(_ON_WORLD),
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"pycollective.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    if name in _ON_WORLD:
        return getattr(importlib.import_module("pycollective.comm.world").world(), name)
    if name == "optim":
        return importlib.import_module("pycollective.optim")
    if name in _NUMBERS:
        return lambda: getattr(importlib.import_module("pycollective.comm.world").world(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

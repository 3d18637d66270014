"""Collective communication in which a topology is a dozen lines of Python.

    import pycollective as pc
    comm = pc.init()                        # under mpirun, torchrun, srun, `pycollective run`, or alone
    total = comm.allreduce(x)               # any NumPy array or torch tensor
    x = comm.empty(shape, "float32")        # an array shared by all ranks: no copies
    comm.allreduce(x, out=x, topology="ring")

Importing this module defines names and loads nothing; NumPy, MPI and the native core are loaded on first use.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any


def _find_compiled() -> None:
    """Take all modules from an installed package, if there is one: sources that are not compiled lack the core."""
    for folder in sys.path:
        package = os.path.join(folder, "pycollective")
        files = os.listdir(package) if os.path.isfile(os.path.join(package, "__init__.py")) else ()
        if any(name.startswith("_core.") and name.endswith(".so") for name in files):
            __path__[:] = [package]
            return


# A script in the root of a clone finds the sources before the installed package.
if os.path.exists(os.path.join(os.path.dirname(__path__[0]), "CMakeLists.txt")):
    _find_compiled()

from pycollective.errors import (  # noqa: E402
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
    from pycollective import optim as optim
    from pycollective.comm.arguments.operators import Op, op
    from pycollective.comm.communicator import Communicator
    from pycollective.comm.described import nonblocking
    from pycollective.comm.explain import Explanation
    from pycollective.comm.handle import Handle
    from pycollective.comm.host.local_world import LocalWorld, local_world
    from pycollective.comm.host.shared_arrays import shared_arrays
    from pycollective.comm.world import from_mpi, init, is_initialized, shutdown, world
    from pycollective.schedule.language.registry import topology

    _world = world()
    allreduce, reduce, reduce_scatter = _world.allreduce, _world.reduce, _world.reduce_scatter
    scan, exscan, mix = _world.scan, _world.exscan, _world.mix
    broadcast, allgather, allgatherv = _world.broadcast, _world.allgather, _world.allgatherv
    gather, scatter, alltoall, alltoallv = _world.gather, _world.scatter, _world.alltoall, _world.alltoallv
    barrier, send, recv = _world.barrier, _world.send, _world.recv
    # not _world's: mypy knows the types of these only after it has checked what imports this module
    iallreduce, ireduce, ireduce_scatter = nonblocking(allreduce), nonblocking(reduce), nonblocking(reduce_scatter)
    iscan, iexscan, imix = nonblocking(scan), nonblocking(exscan), nonblocking(mix)
    ibroadcast, iallgather, iallgatherv = nonblocking(broadcast), nonblocking(allgather), nonblocking(allgatherv)
    igather, iscatter = nonblocking(gather), nonblocking(scatter)
    ialltoall, ialltoallv = nonblocking(alltoall), nonblocking(alltoallv)
    ibarrier, isend, irecv = nonblocking(barrier), nonblocking(send), nonblocking(recv)
    broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
    gather_object, scatter_object = _world.gather_object, _world.scatter_object
    empty, split, dup, group, explain = _world.empty, _world.split, _world.dup, _world.group, _world.explain

    def rank() -> int: ...
    def size() -> int: ...
    def local_rank() -> int: ...
    def local_size() -> int: ...
    def cross_rank() -> int: ...
    def cross_size() -> int: ...

    __version__: str

_HOMES = {
    "Communicator": "comm.communicator",
    "Explanation": "comm.explain",
    "Handle": "comm.handle",
    "LocalWorld": "comm.host.local_world",
    "Op": "comm.arguments.operators",
    "from_mpi": "comm.world",
    "init": "comm.world",
    "is_initialized": "comm.world",
    "local_world": "comm.host.local_world",
    "op": "comm.arguments.operators",
    "shared_arrays": "comm.host.shared_arrays",
    "shutdown": "comm.world",
    "topology": "schedule.language.registry",
    "world": "comm.world",
}
"""Public names that are loaded on first use."""

# Spelled out for type checkers and editors.
__all__ = ["BootstrapError", "CommunicatorError", "Error", "MismatchError", "NestedCallError", "PeerLostError"]
__all__ += ["ProgramError", "TimeoutError", "TopologyError", "VerificationError"]
# the names in _HOMES
__all__ += ["Communicator", "Explanation", "Handle", "LocalWorld", "Op"]
__all__ += ["from_mpi", "init", "is_initialized", "local_world", "op", "shared_arrays", "shutdown", "topology", "world"]
# functions of the default communicator
__all__ += ["rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"]
__all__ += ["allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "allgatherv", "gather", "scatter"]
__all__ += ["alltoall", "alltoallv", "barrier", "send", "recv", "scan", "exscan", "iscan", "iexscan"]
__all__ += ["mix", "imix"]
__all__ += ["iallreduce", "ireduce", "ireduce_scatter", "ibroadcast", "iallgather", "iallgatherv", "igather"]
__all__ += ["iscatter", "ialltoall", "ialltoallv", "ibarrier", "isend", "irecv"]
__all__ += ["broadcast_object", "allgather_object", "gather_object", "scatter_object"]
__all__ += ["empty", "split", "dup", "group", "explain"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"pycollective.{_HOMES[name]}"), name)
    elif name in __all__:
        value = importlib.import_module("pycollective.comm.functions").function(name)
    elif name == "optim":
        return importlib.import_module("pycollective.optim")
    elif name == "__version__":
        value = _version()
    else:
        from pycollective.names import NoAttribute

        raise NoAttribute(f"module {__name__!r}", name, lambda: _meant(name))
    globals()[name] = value
    return value


def _meant(name: str) -> str:
    from pycollective.names import meant
    from pycollective.schedule.collectives import ELSEWHERE

    return meant(name, __all__, ELSEWHERE)


def _version() -> str:
    """Version of the installed package; the build takes it from git tags."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pycollective")
    except PackageNotFoundError:
        return "0+unknown"  # an uninstalled source tree


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__", "optim"])

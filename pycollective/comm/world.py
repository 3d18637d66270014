"""The world: init(), and the default communicator behind the module-level functions."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from typing import Any

from pycollective import checks, settings
from pycollective.comm.bootstrap import detection, failure, places
from pycollective.comm.bootstrap.mpi import MpiBootstrap, import_mpi, world_ranks_of
from pycollective.comm.bootstrap.nodes import discover
from pycollective.comm.bootstrap.protocol import Bootstrap
from pycollective.comm.bootstrap.rendezvous import RendezvousBootstrap
from pycollective.comm.communicator import Communicator, depart_all, forget_all
from pycollective.comm.group import Group
from pycollective.comm.host import team
from pycollective.comm.tuning import accepted, offered
from pycollective.errors import BootstrapError, CommunicatorError, NestedCallError, PeerLostError

_lock = threading.RLock()
_starting = False
_default: Communicator | None = None
_bootstrap: Bootstrap | None = None
_prepared = False


def init(bootstrap: Bootstrap | None = None) -> Communicator:
    """Connect to the other ranks and return the communicator of all ranks; later calls return the same one.

    Works under `mpirun` (through mpi4py), under torchrun, under `pycollective run`, under Horovod's launchers, or alone
    (a world of one).

    Args:
        bootstrap: how to find the other ranks; default: from the environment.

    Returns:
        the default communicator, used by the functions of the package.

    Raises:
        BootstrapError: the peers named by the environment cannot be reached; states what is missing.
        NestedCallError: called by a signal handler or a finalizer during init() of the same thread.
    """
    global _default, _bootstrap, _starting
    with _lock:
        if _default is None:
            if _starting:
                raise NestedCallError("init() was called from within init() (by a signal handler or a finalizer)")
            _starting = True
            try:
                _bootstrap, _default = _connect_to_world(bootstrap)
            finally:
                _starting = False
        return _default


def _connect_to_world(bootstrap: Bootstrap | None) -> tuple[Bootstrap, Communicator]:
    """The ranks of the environment, connected. In an elastic job a worker lost meanwhile begins another generation."""
    for _ in range(detection.MOST_GENERATIONS):
        found = bootstrap or detection.detect()
        try:
            return found, connect(found)
        except (BootstrapError, PeerLostError) as error:
            if bootstrap is not None or not detection.is_elastic():
                raise
            failure = error
    raise failure


def from_mpi(comm: Any, *, timeout: float | None = None) -> Communicator:
    """Collective over an MPI communicator: a communicator of its ranks, in its order.

    Needs no `init`, and does not affect what `init` made. Works on a duplicate of the MPI communicator, which remains
    the caller's and may be used at the same time or freed at once. If its ranks span hosts, the result must be freed
    (`free`, collective) before MPI is finalized; on one host MPI is not needed after this function has returned.

    Args:
        comm: an mpi4py communicator: `MPI.COMM_WORLD`, or the result of its `Split` or `Create`.
        timeout: seconds to wait for the other ranks; default PYCOLLECTIVE_INIT_TIMEOUT.

    Returns:
        a communicator. Its world_ranks are ranks of MPI.COMM_WORLD, if that contains them all.

    Raises:
        TypeError: comm is not an mpi4py communicator.
        ValueError: comm is MPI.COMM_NULL or an intercommunicator.
        BootstrapError: mpi4py cannot be used, MPI is not running, or ranks did not call in time (named).
    """
    mpi = import_mpi()
    checks.instance(comm, "comm", mpi.Comm, "an mpi4py communicator")
    if not mpi.Is_initialized() or mpi.Is_finalized():
        raise BootstrapError("MPI is not running in this process: it was finalized, or never initialized")
    if comm == mpi.COMM_NULL or comm.Is_inter():
        checks.refuse_value("comm", "a communicator of one group of ranks, neither COMM_NULL nor an intercomm", comm)
    seconds = detection.init_timeout() if timeout is None else checks.seconds(timeout, "timeout")
    found = MpiBootstrap(comm, seconds, "from_mpi")
    try:
        return connect(found, world_ranks_of(comm), comm.Get_name())
    finally:
        found.close()


def connect(found: Bootstrap, world_ranks: Sequence[int] | None = None, name: str = "world") -> Communicator:
    """Collective: a communicator of the ranks found by a bootstrap. init() calls this once and keeps the result.

    `world_ranks`: the ranks' numbers in the world; None: they are the world.
    """
    global _prepared
    if not _prepared:
        atexit.register(_end)
        os.register_at_fork(after_in_child=forget_all)
        if found.size > 1:
            failure.watch(found.rank if world_ranks is None else world_ranks[found.rank])
        _prepared = True
    if found.rank == 0:  # once per job
        settings.warn_of_unknown(stacklevel=3)
    nodes, tuning = discover(found, offered() if found.rank == 0 else b"")
    ranks = range(found.size)
    group = Group(nodes, tuple(ranks if world_ranks is None else world_ranks), name, tuning=accepted(tuning))
    try:
        if nodes.count == 1:
            backend = team.connect(found.allgather, found.rank, ranks, group)
        else:
            from pycollective.comm.hosts import network
            from pycollective.comm.hosts import team as hosts_team

            backend = hosts_team.connect(found.allgather, found.rank, ranks, group, network.open_network(found))
    except Exception as error:
        if isinstance(found, RendezvousBootstrap):  # other launchers end the job
            found.give_up(error)
        raise
    assert backend is not None
    return Communicator(backend)


def _end() -> None:
    """Shut down at exit."""
    failure.ends()
    depart_all()
    if isinstance(_bootstrap, RendezvousBootstrap):  # to free MPI's is collective, and may wait for a lost rank
        _bootstrap.close()
    places.release()


def world() -> Communicator:
    """The communicator that init() made.

    Raises:
        CommunicatorError: init() was not called.
    """
    if _default is None:
        raise CommunicatorError("pycollective.init() has not been called")
    return _default


def given_or_world(comm: Communicator | None) -> Communicator:
    """The communicator given for `comm`, or that of init() for None.

    Raises:
        TypeError: comm is not a communicator.
        CommunicatorError: init() was not called.
    """
    if comm is None:
        return world()
    if not (hasattr(comm, "rank") and hasattr(comm, "size")):
        checks.refuse_type("comm", "a Communicator or None", comm)
    return comm


def is_initialized() -> bool:
    """Return whether init() was called and shutdown() was not."""
    return _default is not None


def shutdown() -> None:
    """Free the default communicator. May be called twice; init() may be called again (under mpirun)."""
    global _default, _bootstrap
    with _lock:
        if _default is not None:
            _default.free()
        if _bootstrap is not None:
            _bootstrap.close()
        _default = _bootstrap = None
        places.release()

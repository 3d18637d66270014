"""init, ranks and process sets."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pycollective import checks, settings
from pycollective.comm.bootstrap.detection import MOST_GENERATIONS, init_timeout, is_elastic
from pycollective.comm.bootstrap.mpi import MpiBootstrap
from pycollective.comm.communicator import Communicator
from pycollective.comm.world import connect
from pycollective.comm.world import init as init_communicator
from pycollective.comm.world import shutdown as shutdown_communicator
from pycollective.engine import Engine
from pycollective.errors import Error
from pycollective.hvd.process_sets import ProcessSet, global_process_set


@dataclass
class World:
    """The state that init() creates.

    Attributes:
        comm: all ranks.
        engines: process set's number -> its engine, for sets that include this rank.
        sets: process set's number -> the objects that represent it, at least one.
        dynamic: whether sets may be added and removed.
        mpi_comm: the mpi4py communicator of all ranks that was passed to init(), if any.
    """

    comm: Communicator
    engines: dict[int, Engine] = field(default_factory=dict)
    sets: dict[int, list[ProcessSet]] = field(default_factory=dict)
    dynamic: bool = False
    mpi_comm: Any = None


_world: World | None = None
_left: Communicator | None = None
_lock = threading.RLock()


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Connect to the other ranks and start the engine; when called again, only register further process sets.

    Works under mpirun, torchrun, `pycollective run` and Horovod's launchers, and for a single process.

    Args:
        comm: None: all ranks; a list of ranks: those, in that order; an mpi4py communicator; a
            pycollective.Communicator. Ignored when called again.
        process_sets: sets to create immediately, the same on all ranks; "dynamic": allow add_process_set and
            remove_process_set later (like HOROVOD_DYNAMIC_PROCESS_SETS=1). A set with the same ranks as one registered
            by an earlier call receives that set's number.

    Raises:
        ValueError: this rank is not in `comm`; `process_sets` is invalid; or two sets of this call (or one set and the
            global one) have the same ranks, in which case init() has completed without the duplicates.
        pycollective.BootstrapError: the other ranks cannot be reached.
    """
    with _lock:
        sets, dynamic = _checked(process_sets)
        fresh = _world is None
        if fresh:
            _begin(comm)
        world().dynamic |= dynamic
        try:
            duplicates = _register(sets)
        except BaseException:
            if fresh:
                shutdown()
            raise
        if duplicates:
            raise ValueError(f"process_sets has duplicates (0 is the global set): {', '.join(duplicates)}")


def _checked(process_sets: Sequence[ProcessSet] | str | None) -> tuple[list[ProcessSet], bool]:
    """The sets to register, and whether more may follow."""
    if process_sets is None:
        return [], False
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets must be a list of process sets or 'dynamic', not {process_sets!r}")
        return [], True
    sets = list(process_sets)
    wrong = next((one for one in sets if not isinstance(one, ProcessSet) or one is global_process_set), None)
    if wrong is not None:
        raise ValueError(
            f"process_sets must be a list of process sets besides the global one, or 'dynamic'; it contains {wrong!r}"
        )
    return sets, False


def _begin(comm: Any) -> None:
    global _world
    everyone, engine = _communicator_and_engine(comm)
    here = World(everyone, mpi_comm=comm if hasattr(comm, "Get_rank") else None)
    here.dynamic = settings.read("HOROVOD_DYNAMIC_PROCESS_SETS")
    here.engines[0] = engine
    here.sets[0] = [global_process_set]
    global_process_set.attach(0, range(here.comm.size), here.comm.rank)
    global_process_set.mpi_comm = here.mpi_comm
    _world = here


def _communicator_and_engine(comm: Any) -> tuple[Communicator, Engine]:
    """Make the communicator and its engine; in an elastic job a worker lost meanwhile begins another generation."""
    for _ in range(MOST_GENERATIONS):
        everyone = _communicator(comm)
        try:
            return everyone, Engine(everyone)
        except Error as error:
            if comm is not None or not is_elastic():
                raise
            failure = error
            shutdown_communicator()
    raise failure


def _communicator(comm: Any) -> Communicator:
    if isinstance(comm, Communicator):
        return comm
    if comm is None or isinstance(comm, (list, tuple, range)):
        everyone = init_communicator() if _left is None else _left
        if comm is None or len(comm) == 0:
            return everyone
        part = everyone.group(list(comm))
        if part is None:
            raise ValueError(f"rank {everyone.rank} is not among the ranks {list(comm)} of init()")
        return part
    if hasattr(comm, "Get_rank"):
        return connect(MpiBootstrap(comm, init_timeout()))
    raise ValueError(f"comm must be None, a list of ranks or an mpi4py communicator, not {type(comm).__name__}")


def remember(comm: Communicator) -> None:
    """Use only the ranks of `comm` from now on, also in init(): the others have been lost."""
    global _left
    _left = comm


def shutdown() -> None:
    """Stop the engines; operations in progress fail. init() may be called again. Does nothing before init()."""
    global _world
    with _lock:
        world, _world = _world, None
        if world is None:
            return
        for number in sorted(world.engines, reverse=True):
            world.engines[number].close()
        for process_set in itertools.chain(*world.sets.values()):
            process_set.detach()


def world() -> World:
    """The state created by init().

    Raises:
        ValueError: init() was not called.
    """
    if _world is None:
        raise ValueError("Horovod has not been initialized; use hvd.init().")
    return _world


def engine_of(process_set: ProcessSet) -> Engine:
    """The engine that runs a process set's operations on this rank.

    Raises:
        ValueError: init() was not called, the set was not added, or this rank is not in it.
    """
    here = world()
    try:
        number = process_set.process_set_id
    except Exception:
        checks.refuse_type("process_set", "a ProcessSet", process_set)
    if number is None or number not in here.sets:
        raise ValueError(f"process_set {process_set} is not registered: pass it to init() or add_process_set()")
    engine = here.engines.get(number)
    if engine is None:
        raise ValueError(f"rank {here.comm.rank} is not part of {process_set}")
    return engine


def is_initialized() -> bool:
    """Return whether init() was called and shutdown() was not."""
    return _world is not None


# -- process sets --------------------------------------------------------------------------------------------------


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Collective over all ranks: add a set of ranks with its own operations.

    Raises:
        ValueError: sets are not dynamic, such a set exists already, or a rank is out of range.
    """
    with _lock:
        _require_dynamic()
        made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
        if made.process_set_id is not None:
            raise ValueError(f"{made} is registered already")
        mine, parts = _agree(made)
        for ranks in parts:
            if _number_of(ranks) is not None:
                raise ValueError(f"there is a process set of the ranks {ranks} already")
        for ranks in parts:
            _make(made if ranks == mine else ProcessSet(ranks), ranks)
        return made


def _register(process_sets: Sequence[ProcessSet]) -> list[str]:
    """Collective: register new sets and number all; returns descriptions of sets with the same ranks as an earlier one
    of the list, which get no number."""
    here = world()
    seen, duplicates = {0}, []
    for process_set in process_sets:
        mine, parts = _agree(process_set)
        for ranks in parts:
            if _number_of(ranks) is None:
                _make(ProcessSet(ranks), ranks)
        number = _number_of(mine)
        assert number is not None
        if number in seen:
            process_set.detach()
            duplicates.append(f"{process_set} (number {number})")
        else:
            process_set.attach(number, mine, here.comm.rank)
            here.sets[number].append(process_set)
            seen.add(number)
    return duplicates


def _agree(process_set: ProcessSet) -> tuple[list[int], list[list[int]]]:
    """Collective: this rank's ranks of a set, and all ranks'. The latter are several lists if the ranks' mpi4py
    communicators differ.

    Raises:
        ValueError: the ranks' sets are different.
    """
    here = world()
    mine = process_set.ranks_in(here.mpi_comm, here.comm.world_ranks)
    proposed: list[list[int]] = [json.loads(text) for text in here.comm.backend.exchange(json.dumps(mine).encode())]
    parts = sorted(map(list, {tuple(ranks) for ranks in proposed}))
    members = [(rank, ranks) for ranks in parts for rank in ranks]
    if len(parts) > 1 and sorted(members) != list(enumerate(proposed)):  # each rank in one part, its own
        raise ValueError(f"the ranks passed different process sets: {parts}")
    return mine, parts


def _number_of(ranks: list[int]) -> int | None:
    """The number under which a set of these ranks is registered."""
    return next((number for number, sets in world().sets.items() if sets[0].ranks == ranks), None)


def _make(process_set: ProcessSet, ranks: list[int]) -> None:
    here = world()
    part = here.comm.group(ranks)
    number = next(free for free in itertools.count(1) if free not in here.sets)
    here.sets[number] = [process_set]
    if part is not None:
        here.engines[number] = Engine(part)
    process_set.attach(number, ranks, here.comm.rank)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Collective over all ranks: remove a process set; False if it is the global one or not registered."""
    with _lock:
        here = world()
        checks.instance(process_set, "process_set", ProcessSet, "a ProcessSet")
        number = process_set.process_set_id
        if not number or number not in here.sets:
            return False
        _require_dynamic()
        here.comm.barrier()
        sets = here.sets.pop(number)
        engine = here.engines.pop(number, None)
        if engine is not None:
            engine.close()
        for one in sets:
            one.detach()
        return True


def process_set_ranks() -> dict[int, list[int]]:
    """Number -> ranks, for all registered process sets; 0 is the global one."""
    return {number: list(sets[0].ranks or []) for number, sets in world().sets.items()}


def _require_dynamic() -> None:
    if not world().dynamic:
        raise ValueError("process sets are fixed by init(): set HOROVOD_DYNAMIC_PROCESS_SETS=1 to change them later")


# -- ranks ---------------------------------------------------------------------------------------------------------


def rank() -> int:
    """This process's rank among all."""
    return world().comm.rank


def size() -> int:
    """The number of processes."""
    return world().comm.size


def local_rank() -> int:
    """This process's rank on its host."""
    return world().comm.local_rank


def local_size() -> int:
    """The number of processes on this host."""
    return world().comm.local_size


def cross_rank() -> int:
    """This host's index among the hosts that have a process with this local rank."""
    return world().comm.cross_rank


def cross_size() -> int:
    """The number of hosts that have a process with this local rank."""
    return world().comm.cross_size


def is_homogeneous() -> bool:
    """Return whether all hosts have the same number of processes."""
    nodes = world().comm.backend.group.nodes
    return len({len(nodes.ranks(node)) for node in range(nodes.count)}) == 1


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin a timeline of all ranks; call it on all of them. Does nothing if that file is already being written.

    See pycollective.engine.timeline.

    Raises:
        ValueError: init() was not called. RuntimeError: another file is being written.
    """
    engine = world().engines[0]
    file_path = checks.path(file_path, "file_path")
    mark_cycles = checks.flag(mark_cycles, "mark_cycles")
    if engine.timeline_path is None or engine.timeline_path != Path(file_path).absolute():
        engine.start_timeline(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline, on all ranks; rank 0 completes the file."""
    world().engines[0].stop_timeline()

"""Finds the compiled schedule of a call's signature: which topology, which variant, which placement."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from pycollective import _core, settings
from pycollective.comm.arguments.arrays import package_of
from pycollective.comm.arguments.function_digest import digest
from pycollective.comm.arguments.operators import Op, resolve
from pycollective.comm.arguments.rows import Cut, Shape, cut
from pycollective.comm.tuning import Choice
from pycollective.dtypes import DTYPES
from pycollective.errors import TopologyError, VerificationError
from pycollective.schedule.collectives import CALLS, COLLECTIVES, PRIMARY, program_of

if TYPE_CHECKING:  # the first call loads the compiler, not init()
    from collections.abc import Callable, Sequence

    from pycollective.comm.tuning_file import Row, World
    from pycollective.schedule.compiler.schedule import Placement, Schedule
    from pycollective.schedule.mixing import MixingMatrix

DEFAULT_TOPOLOGY = "direct"
"""The default within a host: reduces in rank order and moves the fewest bytes."""

BETWEEN_HOSTS, SHORT_BETWEEN_HOSTS, FEWEST_MESSAGES = "ordered", "ordered(one_in=4)", "star"
"""The defaults between hosts: of long calls, of short ones, and of short allreduces where ranks share cores; with the
same bits."""

SHORT, SHORT_ON_SHARED_CORES = 64 << 10, 128 << 10
"""Bytes of calls that are short between hosts."""

NCCL = "nccl"
"""Instead of a topology: NCCL's own collectives, for GPU arrays."""

_ACCUMULATED_WIDER = frozenset(
    row.name
    for row in DTYPES.values()
    if (row.kind == "real" and row.itemsize < 4) or (row.kind.endswith("integer") and row.itemsize < 8)
)
"""Types whose partial sums, in one of their elements, could lose what the sum itself keeps."""

_ADDING_AT_ONCE = (DEFAULT_TOPOLOGY, FEWEST_MESSAGES)
"""Topologies in which a rank adds up all contributions to an element, so that no partial sum is sent."""

PLACEMENTS = {0: "STAGED", 1: "WINDOW_IN", 2: "WINDOW_OUT", 3: "WINDOW", 7: "INPLACE"}
"""By the core's placement bits: 1 input shared, 2 output shared, 4 in place."""


def choose(collective: str, topology: object, nbytes: int, default: str = DEFAULT_TOPOLOGY) -> tuple[Any, bool]:
    """The topology instance for a call, and whether the small-message variant is used.

    Args:
        topology: name, "name(parameter=value)", "FILE.py:NAME", class or instance; None for the default; or a Choice,
            which also decides the variant. Of a weighted collective also a MixingMatrix, which is returned.
        nbytes: bytes of the logical buffer.
        default: the topology used if neither the call nor the environment names one.

    Raises:
        TopologyError: no topology of that name, or it lacks the collective.
    """
    from pycollective.schedule.language import registry

    if is_matrix(topology):
        return topology, False
    if isinstance(topology, str) and topology == NCCL:
        raise TopologyError("topology 'nccl' is for GPU arrays: NCCL reduces nothing in CPU memory")
    program = program_of(collective)
    chosen = topology if isinstance(topology, Choice) else None
    if chosen is not None:
        topology = chosen.topology or None
    if topology is None:
        instance = _default(collective, default)
    else:
        instance = registry.find(topology) if isinstance(topology, str) else registry.get(topology)
    row = registry.info(instance)
    if program not in row.collectives:
        able = [other.name for other in registry.describe() if program in other.collectives]
        raise TopologyError(f"topology {row.name!r} has no {program}; try {', '.join(able)}")
    if chosen is not None and chosen.topology:
        return instance, chosen.small and registry.has_small(instance, program)
    return instance, registry.takes_small(instance, program, nbytes)


def is_matrix(topology: object) -> TypeGuard[MixingMatrix]:
    """Return whether it is a mixing matrix, which stands for a topology in weighted collectives."""
    return package_of(topology, "pycollective.schedule.mixing", "MixingMatrix") is not None


def label_of(topology: Any) -> str:
    """The description of what `choose` has returned."""
    from pycollective.schedule.language import registry

    return topology.label if is_matrix(topology) else registry.label(topology)


@functools.cache
def default_text() -> str:
    """PYCOLLECTIVE_TOPOLOGY, read once per process; empty if not set."""
    text: str = settings.read("PYCOLLECTIVE_TOPOLOGY")
    return text


def measured(collective: str, nbytes: int, tuned: World | None) -> Row | None:
    """What was measured to be fastest for a call that names no topology; None: the rules decide."""
    if tuned is None or default_text() not in ("", NCCL):
        return None
    return tuned.row(program_of(collective), nbytes)


@functools.cache
def _default(collective: str, otherwise: str) -> Any:
    """The topology of calls that name none: PYCOLLECTIVE_TOPOLOGY if it has the collective.

    A barrier moves no data, and NCCL's collectives are for GPU arrays only: both keep the default.

    Raises:
        TopologyError: the variable does not name a topology, or one without allreduce.
    """
    from pycollective.schedule.language import registry

    text = default_text()
    if text in ("", NCCL) or collective not in COLLECTIVES:
        return registry.get(otherwise)
    try:
        instance = registry.find(text)
    except (TopologyError, OSError, SyntaxError) as error:
        raise TopologyError(f"PYCOLLECTIVE_TOPOLOGY: {error}") from None
    there = registry.info(instance).collectives
    if PRIMARY not in there:
        raise TopologyError(f"PYCOLLECTIVE_TOPOLOGY: {text!r} has no {PRIMARY}; it has {', '.join(there)}")
    return instance if collective in there else registry.get(otherwise)


def default_between_hosts(collective: str, nbytes: int, hosts: Sequence[int], own_cores: bool) -> str:
    """The topology of calls between hosts that name none.

    With three hosts or more, a sum at one rank takes a latency more than an exchange of all contributions, in fewer
    messages: each costs its ranks a system call, which counts where ranks wait for each other's cores.

    Args:
        hosts: the host of every rank. own_cores: whether every rank, on every host, has a core of its own.
    """
    few = not own_cores and nbytes <= SHORT_ON_SHARED_CORES and len(set(hosts)) > 2
    if few and program_of(collective) == PRIMARY:
        return FEWEST_MESSAGES
    return SHORT_BETWEEN_HOSTS if nbytes <= SHORT else BETWEEN_HOSTS


_compiling = threading.RLock()  # ranks that are threads ask at once: one compiles, the others reuse it


class ScheduleKey(NamedTuple):
    """What a schedule is compiled for."""

    topology: Any  # an instance, or the MixingMatrix of a weighted collective
    collective: str
    size: int
    root: int | None
    placement: Placement
    small: bool  # whether it is the small-message variant
    hosts: tuple[int, ...] = ()  # the host of every rank; empty: they are on one


def schedule_for(key: ScheduleKey) -> Schedule:
    """A compiled schedule; that of a user-defined topology is verified before its first use, or refused."""
    if is_matrix(key.topology):
        return key.topology.schedule(key.placement, key.hosts)
    with _compiling:
        return _schedule_for(key)


@functools.lru_cache(maxsize=1024)
def _schedule_for(key: ScheduleKey) -> Schedule:
    from pycollective.schedule.compiler.compiler import compile as compile_schedule

    schedule = compile_schedule(*key)
    if not is_ours(key.topology):
        from pycollective.schedule.verifier.verifier import verify

        verify(schedule)
    return schedule


def keeps_small(topology: Any, collective: str, size: int, root: int | None, placement: Placement) -> bool:
    """Return whether the small-message variant is used with this placement.

    If every rank overwrites what every rank reads, one-shot needs an extra copy through scratch and two-shot does not:
    two-shot replaces it if both give the same bits.
    """
    return (
        _keeps_any_small(topology, placement)
        or schedule_for(ScheduleKey(topology, collective, size, root, placement, True)).cells == 0
    )


def _keeps_any_small(topology: Any, placement: Placement) -> bool:
    """Return whether it is used even if it needs scratch."""
    from pycollective.schedule.language import registry

    return not placement.inplace or registry.info(topology).order != "rank"


def is_ours(topology: Any) -> bool:
    """Return whether a topology is one of the package's own, which its label identifies."""
    return type(topology).__module__.startswith("pycollective.topologies")


class LoadedSchedule(NamedTuple):
    """One rank's part of a schedule, and its `program_digest`."""

    schedule: _core.Schedule
    program: int


@functools.lru_cache(maxsize=1024)
def program_digest(key: ScheduleKey) -> int:
    """64-bit digest of a user-defined topology's schedule, of all ranks: detects a program edited on one host only.

    0 for the package's own topologies.
    """
    if is_ours(key.topology):
        return 0
    schedule = schedule_for(key)
    return digest(schedule.table(rank).tobytes() for rank in range(schedule.size))


def compiled(key: ScheduleKey, rank: int) -> LoadedSchedule:
    """A rank's part of a schedule that this process compiles, for all ranks."""
    return LoadedSchedule(_core.Schedule(schedule_for(key).table(rank)), program_digest(key))


_loaded: dict[tuple[ScheduleKey, int], LoadedSchedule] = {}
_MOST_LOADED = 4096


class Planner:
    """Plans a call signature when a team first encounters it.

    A message from one rank to another is a collective of the two, "send", in which the sender is rank 0. One of at
    most EAGER_BYTES fits half of their scratch, and does not wait for the receiver.
    """

    EAGER_BYTES = 32768

    def __init__(
        self,
        rank: int,
        size: int,
        hosts: tuple[int, ...] = (),
        own_cores: bool = True,
        tuned: World | None = None,
    ) -> None:
        """Remember for whom it plans.

        Args:
            hosts: the host of every rank; empty: they are on one.
            own_cores: whether every rank has a core.
            tuned: what was measured for such ranks.
        """
        self.rank, self.size, self.hosts, self.own_cores, self.tuned = rank, size, hosts, own_cores, tuned
        self.load: Callable[[ScheduleKey, int], LoadedSchedule] = compiled
        """A rank's part of a schedule; raises as `schedule_for` does."""
        self._find_matrix: Callable[[object, int, int], MixingMatrix | None] | None = None

    def cut(self, collective: str, shape: Shape) -> Cut:
        """How a call with this input shape cuts its arrays."""
        return cut(collective, shape, self.rank, self.size)

    def matrix(self, graph: object, step: int) -> MixingMatrix | None:
        """The matrix of a graph whose weights are remembered; None: the call must evaluate it."""
        if self._find_matrix is None:
            from pycollective.comm.arguments.graphs import find

            self._find_matrix = find
        return self._find_matrix(graph, self.size, step)

    def __call__(
        self,
        collective: str,
        topology: object,
        nbytes: int,
        root: int,
        placement: int,
        op: str | Op,
        dtype: str,
    ) -> tuple[_core.Schedule, str, int, int, int, int, str, int]:
        """(schedule, topology's label, digest of its program, operator's number, custom function's address, digest of
        its code, operator's name, bytes of a tile or 0)."""
        from pycollective.schedule.compiler.schedule import Placement
        from pycollective.schedule.language import registry

        if collective == "send":
            from pycollective.schedule.compiler.p2p import compile_send

            table = compile_send(eager=nbytes <= self.EAGER_BYTES, hosts=self.hosts).table(self.rank)
            return (_core.Schedule(table), "direct", 0, 0, 0, 0, "sum", 0)
        if topology is None:
            topology = self._tuned(collective, dtype, nbytes)
        choice = topology if isinstance(topology, Choice) else Choice("")
        instance, small = choose(collective, topology, nbytes, self._default(collective, dtype, nbytes))
        where = Placement[PLACEMENTS[placement]]
        if is_matrix(instance):
            table = instance.schedule(where, self.hosts).table(self.rank)
            return (_core.Schedule(table), instance.label, instance.digest, 0, 0, 0, "sum", 0)
        program = program_of(collective)
        rooted = root if CALLS[program].rooted else None
        operator = resolve(op, dtype)
        staged = ScheduleKey(instance, program, self.size, rooted, Placement.STAGED, small, self.hosts)
        if small and not self.hosts and not _keeps_any_small(instance, where):  # between hosts, messages cost more
            small = self._load(ScheduleKey(instance, program, self.size, rooted, where, True)).schedule.cells == 0
        mine = self._load(staged._replace(placement=where, small=small))
        # Ranks whose arrays are placed differently run the staged schedule: its digest is the same on all of them.
        code = 0 if is_ours(instance) else self._load(staged).program
        return (mine.schedule, registry.label(instance), code ^ choice.digest, *operator, choice.tile)

    def _tuned(self, collective: str, dtype: str, nbytes: int) -> Choice | None:
        """The measured choice for a call that names no topology; None: the rules decide, or sums need a wider type."""
        row = measured(collective, nbytes, self.tuned)
        if row is None or (self._passes_narrow_sums(dtype) and row.topology not in _ADDING_AT_ONCE):
            return None
        return Choice(row.topology, row.small, row.tile)

    def _passes_narrow_sums(self, dtype: str) -> bool:
        """Return whether partial sums between hosts, in the element type, could lose what the sum itself keeps."""
        return bool(self.hosts) and dtype in _ACCUMULATED_WIDER

    def _default(self, collective: str, dtype: str, nbytes: int) -> str:
        """The topology of calls that name none.

        Partial sums that are passed from host to host are stored in the element type. Where one host would accumulate
        in a wider type (small floating-point types, scaled integers), hosts exchange contributions instead: same bits.
        """
        if not self.hosts:
            return DEFAULT_TOPOLOGY
        default = default_between_hosts(collective, nbytes, self.hosts, self.own_cores)
        return default if default in _ADDING_AT_ONCE or not self._passes_narrow_sums(dtype) else DEFAULT_TOPOLOGY

    def _load(self, key: ScheduleKey) -> LoadedSchedule:
        """This rank's part of a schedule; remembered for all communicators of the process."""
        found = _loaded.get((key, self.rank))
        if found is None:
            try:
                found = self.load(key, self.rank)
            except VerificationError as error:  # without the verifier's frames: the message has the topology's lines
                raise error.with_traceback(None) from None
            if len(_loaded) >= _MOST_LOADED:
                _loaded.pop(next(iter(_loaded)), None)  # the oldest
            _loaded[key, self.rank] = found
        return found

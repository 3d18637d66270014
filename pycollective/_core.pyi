"""
The native core of pycollective: executor, windows and element types. Private; use pycollective.
"""
from __future__ import annotations
import collections.abc
import numpy
import typing
import typing_extensions
__all__: list[str] = ['ALWAYS_STAGED', 'AgreedOperation', 'Agreement', 'Engine', 'Handle', 'HostBuffer', 'Layout', 'Ledger', 'Schedule', 'Segment', 'Team', 'Window', 'Work', 'announcements', 'check_call', 'collectives', 'combine', 'dlpack_layout', 'dtype_name', 'dtypes', 'fast_method', 'instruction_set', 'is_numpy', 'operators', 'placement', 'report_on_signal', 'reports_wanted', 'settings', 'takes', 'timeout_of']
class Schedule:
    """
    One rank's compiled schedule, checked.
    """
    def __init__(self, table: typing_extensions.Buffer) -> None:
        ...
    @property
    def cells(self) -> int:
        ...
    @property
    def chunks(self) -> int:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def steps(self) -> int:
        ...
class Layout:
    """
    Where each chunk lies, in elements.
    """
    @staticmethod
    def blocks(counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], packed_input: bool, packed_output: bool) -> Layout:
        ...
    @staticmethod
    def matrix(counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], size: typing.SupportsInt | typing.SupportsIndex) -> Layout:
        ...
    @staticmethod
    def split(count: typing.SupportsInt | typing.SupportsIndex, chunks: typing.SupportsInt | typing.SupportsIndex, align: typing.SupportsInt | typing.SupportsIndex) -> Layout:
        ...
    @property
    def input_offset(self) -> list[int]:
        ...
    @property
    def length(self) -> list[int]:
        ...
    @property
    def output_offset(self) -> list[int]:
        ...
class Segment:
    """
    Shared memory that all ranks of a communicator have mapped.
    """
    @staticmethod
    def attach(token: str, bytes: typing.SupportsInt | typing.SupportsIndex) -> Segment:
        ...
    @staticmethod
    def create(kind: str, bytes: typing.SupportsInt | typing.SupportsIndex) -> Segment:
        ...
    def reserve(self, offset: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def seal(self) -> None:
        ...
    def token(self) -> str:
        ...
    @property
    def bytes(self) -> int:
        ...
class HostBuffer:
    """
    CPU memory of an array that speaks DLPack; not copied.
    """
    def __init__(self, array: typing.Any, strided: bool = False) -> None:
        ...
    def array(self, dtype: numpy.dtype[typing.Any]) -> numpy.ndarray:
        """
        The elements as a NumPy array, not copied: flat where they are contiguous.
        """
    @property
    def address(self) -> int:
        ...
    @property
    def contiguous(self) -> bool:
        ...
    @property
    def count(self) -> int:
        ...
    @property
    def dtype(self) -> str:
        ...
    @property
    def writable(self) -> bool:
        ...
class Handle:
    """
    A nonblocking call in flight.
    """
    def result(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> typing.Any:
        """
        wait(), then the call's result.
        """
    def test(self) -> bool:
        """
        Whether the call has completed (also when it failed).
        """
    def wait(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> None:
        """
        Block until the call has completed, `timeout` seconds at most. Raises what the call raised, or TimeoutError.
        """
class Ledger:
    """
    What each rank says about its asynchronous calls, in shared memory.
    """
    @staticmethod
    def segment_bytes(size: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def __init__(self, segment: Segment, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def calls(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        How many calls a rank has made.
        """
    def counterpart(self, rank: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        What a rank has said of its call of the same number as this rank's latest.
        """
    def note(self, digest: typing.SupportsInt | typing.SupportsIndex, text: str) -> int:
        """
        Write down the next call; returns a rank whose call of the same number differs, or -1.
        """
    def text(self, rank: typing.SupportsInt | typing.SupportsIndex, digest: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        What a rank has said of its latest call with that digest, or nothing.
        """
class Window:
    """
    A symmetric allocation.
    """
    def array(self, dtype: numpy.dtype[typing.Any], shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> numpy.ndarray:
        """
        This rank's part as a NumPy array.
        """
class Team:
    """
    One rank's end of a communicator on one host.
    """
    @staticmethod
    def segment_bytes(size: typing.SupportsInt | typing.SupportsIndex, scratch_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def __init__(self, segment: Segment, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, scratch_bytes: typing.SupportsInt | typing.SupportsIndex, world_ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], name: str, threads: bool, planner: typing.Any) -> None:
        """
        planner: see Planner. What it returns is checked but for the address of a custom operator's function, which is unchecked: calls jump to it.
        """
    def call(self, collective: typing.SupportsInt | typing.SupportsIndex, x: typing.Any, out: typing.Any, op: typing.Any, topology: typing.Any, root: typing.SupportsInt | typing.SupportsIndex, counts: typing.Any, scale: typing.Any, timeout: typing.Any, nonblocking: bool, note: typing.Any = None) -> typing.Any:
        """
        Run one collective; returns its result, or a Handle. The ranks must agree on `note`.
        """
    def channel(self, sender: typing.SupportsInt | typing.SupportsIndex, receiver: typing.SupportsInt | typing.SupportsIndex, planner: typing.Any) -> Team:
        """
        The team of two over which `sender` sends to `receiver`.
        """
    def close(self) -> None:
        """
        Say goodbye to the peers; later calls raise.
        """
    def departed(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def give_up(self, text: str) -> None:
        ...
    def gone(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def in_window(self, x: typing.Any) -> bool:
        ...
    def mail(self, rank: typing.SupportsInt | typing.SupportsIndex) -> str:
        ...
    def report_lost(self, rank: typing.SupportsInt | typing.SupportsIndex, text: str) -> None:
        ...
    def report_mismatch(self, rank: typing.SupportsInt | typing.SupportsIndex, text: str) -> None:
        ...
    def report_timeout(self, rank: typing.SupportsInt | typing.SupportsIndex, text: str) -> None:
        ...
    def require_open(self) -> None:
        """
        Raise if it was closed, or belongs to a parent process.
        """
    def require_sound(self) -> None:
        """
        Raise what poisoned the communicator, if anything did.
        """
    def require_turn(self) -> None:
        """
        Raise if the caller is inside a call of the communicator already.
        """
    def set_mail(self, text: str) -> None:
        ...
    def set_patience(self, spin_us: typing.SupportsFloat | typing.SupportsIndex, yield_us: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def set_survivor(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def survivor(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def watch_peers(self) -> None:
        ...
    def window(self, segment: Segment, id: typing.SupportsInt | typing.SupportsIndex, stride: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> Window:
        ...
    @property
    def closed(self) -> bool:
        ...
    @property
    def poisoned(self) -> bool:
        ...
    @property
    def rank(self) -> int:
        ...
    @property
    def scratch_bytes(self) -> int:
        ...
    @property
    def size(self) -> int:
        ...
    @property
    def tile_bytes(self) -> tuple[float, float]:
        """
        Bytes of a tile on windows and on staged arrays; the same on all ranks.
        """
    @tile_bytes.setter
    def tile_bytes(self, arg1: tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]) -> None:
        ...
class Work:
    """
    An operation under way, and what came of it.
    """
    error: typing.Any
    result: typing.Any
    def done(self) -> bool:
        """
        Whether it has completed, successfully or not.
        """
    def wait(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> typing.Any:
        """
        Block until it has completed, `timeout` seconds at most; returns the result, raises what the operation raised.
        """
    def when_done(self, callback: typing.Any) -> None:
        """
        Call `callback()` once it has completed: on the engine's thread, or at once.
        """
    @property
    def item(self) -> typing.Any:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def on_wait(self) -> typing.Any:
        """
        Called by wait() once all is well, in the thread that waits.
        """
    @on_wait.setter
    def on_wait(self, arg0: typing.Any) -> None:
        ...
class Engine:
    """
    Named operations among the ranks of one host.
    """
    @staticmethod
    def board_bytes(size: typing.SupportsInt | typing.SupportsIndex, slots: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    @staticmethod
    def prepare_board(board: Segment, size: typing.SupportsInt | typing.SupportsIndex, slots: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        By one rank, before the others make their engines.
        """
    def __init__(self, team: typing.Any, board: Segment, slots: typing.SupportsInt | typing.SupportsIndex, buffer: typing.Any, buffers: typing.SupportsInt | typing.SupportsIndex, topologies: collections.abc.Sequence[typing.Any], run: typing.Any, warn_seconds: typing.SupportsFloat | typing.SupportsIndex, shutdown_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        ...
    def close(self) -> None:
        ...
    def loop(self) -> None:
        """
        The engine's thread; returns after close().
        """
    def report(self) -> str:
        """
        What waits for whom, a line each.
        """
    def require_outside(self) -> None:
        """
        Raise if the caller is inside an operation of the engine.
        """
    def set_topologies(self, rows: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.Any]]) -> None:
        """
        (most bytes of a batch, topology), ascending; the same on all ranks, between the same batches.
        """
    def submit(self, items: collections.abc.Sequence[typing.Any], now: bool) -> list[Work]:
        """
        A group of items; `now`: the caller waits for them at once.
        """
    def take_events(self) -> tuple[list[tuple[str, str, str, int, int]], list[tuple[int, int, int, int, list[int], list[int], int, list[int], list[tuple[int, int]]]]]:
        """
        Since the last time: [(phase, collective, operation, begin, end)], [(begin, end, chunk, tile, source ranks, target ranks, counter, ranks that wait for it, [(peer, its counter)])]; ns of time.monotonic_ns().
        """
    def trace(self, on: bool) -> None:
        ...
    def traffic(self) -> tuple[int, int]:
        """
        Bytes that allreduces have reduced so far, and batches run.
        """
    def tune(self, threshold: typing.SupportsInt | typing.SupportsIndex, cycle_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Of all ranks.
        """
    @property
    def cycle_seconds(self) -> float:
        ...
    @property
    def threshold(self) -> int:
        ...
class AgreedOperation:
    """
    An operation that all ranks have announced.
    """
    @property
    def absent(self) -> list[int]:
        """
        Ranks that need not announce it, having joined.
        """
    @property
    def collective(self) -> str:
        ...
    @property
    def count(self) -> int:
        """
        Elements of x, where the whole shape is agreed.
        """
    @property
    def device(self) -> bool:
        """
        In GPU memory.
        """
    @property
    def difference(self) -> str:
        """
        How the ranks differ, for people; empty: they agree.
        """
    @property
    def dtype(self) -> str:
        """
        Of its arrays; empty: it has none.
        """
    @property
    def last(self) -> int:
        """
        Who announced it last.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def op(self) -> str:
        ...
    @property
    def postscale(self) -> float:
        ...
    @property
    def prescale(self) -> float:
        ...
    @property
    def rows(self) -> list[int]:
        """
        The first extent of each rank's x; 0 for ranks that have joined.
        """
    @property
    def shape(self) -> list[int]:
        """
        Of each rank's x; the first extent is -1 where ranks may differ.
        """
class Agreement:
    """
    What follows from the ranks' announcements: the same on all ranks that hear the same.
    """
    def __init__(self, world_ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        `world_ranks`: of the ranks.
        """
    def announce(self, rank: typing.SupportsInt | typing.SupportsIndex, announcement: bytes) -> None:
        """
        What a rank announces. Raises ValueError for what no rank can announce.
        """
    def cut(self, threshold: typing.SupportsInt | typing.SupportsIndex) -> list[list[AgreedOperation]]:
        """
        All that is complete, in batches of operations that are fused: up to `threshold` bytes.
        """
    def report(self, seconds: typing.SupportsFloat | typing.SupportsIndex = 0, reporter: typing.SupportsInt | typing.SupportsIndex = -1) -> str:
        """
        Operations that have waited for `seconds`, and for which ranks, a line each; of a rank only those that it reports.
        """
    @property
    def waiting(self) -> int:
        """
        Operations that some ranks have not announced.
        """
def announcements(items: collections.abc.Sequence[typing.Any], size: typing.SupportsInt | typing.SupportsIndex) -> list[bytes]:
    """
    What this rank announces of items that it submits together, among `size` ranks. Raises what is wrong with one.
    """
def check_call(collective: str, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, root: typing.SupportsInt | typing.SupportsIndex, counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None, x: typing.Any, out: typing.Any) -> None:
    """
    Raise ValueError or TypeError for arrays that cannot work in this rank's call: lengths, types, overlap. An array is one of NumPy's, a HostBuffer, or (address, elements, dtype, writable); None: not given.
    """
def collectives() -> list[str]:
    """
    Names of the collectives, in the order of their numbers.
    """
def combine(op: str, sources: collections.abc.Sequence[typing.Any], outs: collections.abc.Sequence[typing.Any], streamed: bool = False, prescale: typing.SupportsFloat | typing.SupportsIndex = 1.0, postscale: typing.SupportsFloat | typing.SupportsIndex = 1.0) -> None:
    """
    Reduce local arrays into all of `outs` with the executor's vector code; `streamed`: past the caches. `prescale`: a factor on each array; `postscale`: on the result.
    """
def dlpack_layout(array: typing.Any) -> tuple[int, tuple[int, ...]]:
    """
    The DLPack type of the device that an array is on, and its shape: for arrays with nothing but __dlpack__.
    """
def dtype_name(dtype: typing.Any) -> str | None:
    """
    Our name of a numpy.dtype, or None.
    """
def dtypes() -> list[str]:
    """
    Names of the element types.
    """
def fast_method(owner: type, method: typing.Any, name: str, signature: str) -> typing.Any:
    """
    A descriptor for the class `owner` that runs plain calls of a method at once and others through `method`.
    """
def instruction_set() -> str:
    """
    Vector code in use: baseline, avx2 or avx512.
    """
def is_numpy(array: typing.Any) -> bool:
    """
    Whether the argument is a numpy.ndarray itself, of no subclass.
    """
def operators() -> list[tuple[str, str]]:
    """
    (name, meaning) of the reduction operators, in the order of their numbers.
    """
def placement(collective: str, x: typing.Any, out: typing.Any, x_shared: bool, out_shared: bool) -> int:
    """
    Where peers may use the arrays of a call: 1 the input, 2 the output, 4 in place. `x_shared`, `out_shared`: whether peers have their memory mapped.
    """
def report_on_signal(number: typing.SupportsInt | typing.SupportsIndex) -> bool:
    """
    Engines write what waits for whom to standard error when the signal comes.
    """
def reports_wanted() -> int:
    """
    How often that signal has come.
    """
def settings() -> list[tuple[str, float, float, str]]:
    """
    (variable, default, value, meaning) of every environment variable.
    """
def takes(op: str, dtype: str) -> bool:
    """
    Whether the operator takes the element type.
    """
def timeout_of(timeout: typing.Any) -> float:
    """
    Seconds of a call's timeout; None: PYCOLLECTIVE_TIMEOUT. Raises ValueError or TypeError.
    """
ALWAYS_STAGED: int = 4096

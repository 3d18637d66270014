"""
The native core of pycollective: executor, windows and element types. Private; use pycollective.
"""
from __future__ import annotations
import collections.abc
import numpy
import typing
import typing_extensions
__all__: list[str] = ['ALWAYS_STAGED', 'ALWAYS_STAGED_BETWEEN_HOSTS', 'AgreedOperation', 'Board', 'Carrier', 'Engine', 'Handle', 'HostBuffer', 'JaxGraphCall', 'Layout', 'Ledger', 'Rounds', 'Schedule', 'Segment', 'TableDirectory', 'Team', 'TensorFlowCall', 'TensorFlowCompiledCall', 'UcxDevices', 'UcxWorker', 'Window', 'Work', 'abandon_in_heap', 'adopt_in_heap', 'allocate_in_heap', 'announcements', 'check_call', 'collectives', 'combine', 'define_tensorflow_operations', 'define_tensorflow_xla_targets', 'dlpack_layout', 'dtype_name', 'dtypes', 'heap_bytes', 'instruction_set', 'is_in_heap', 'jax_add_start', 'jax_handlers', 'jax_plan', 'jax_plan_both', 'method_of', 'operators', 'placement', 'reducer_in_place', 'report_on_signal', 'set_numpy_allocator', 'settings', 'takes', 'timeout_of']
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
    The position of each chunk, in elements.
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
    def await_change(self, seen: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], seconds: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait until one of some 64-bit words, given as (number, value), has another value; False: not within this time. Does not handle signals.
        """
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
    CPU memory of an array that supports DLPack; not copied.
    """
    @staticmethod
    def bytes_of(tensor: typing.Any) -> HostBuffer:
        """
        The bytes of a torch tensor, as uint8; None unless it is a plain one: contiguous, in CPU memory, without gradient, negation or conjugation, and not of a subclass.
        """
    @staticmethod
    def on_device(address: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, dtype: str, writable: bool) -> HostBuffer:
        """
        Elements in device memory, for Team.call with `copies` only. The caller keeps the memory.
        """
    def __init__(self, array: typing.Any, strided: bool = False) -> None:
        ...
    def array(self, dtype: numpy.dtype[typing.Any]) -> numpy.ndarray:
        """
        The elements as a NumPy array, not copied; flat if they are contiguous.
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
    def result(self, timeout: float | None = None) -> typing.Any:
        """
        wait(), then the call's result.
        """
    def test(self) -> bool:
        """
        Whether the call has completed (also when it failed).
        """
    def wait(self, timeout: float | None = None) -> None:
        """
        Block until the call has completed, at most `timeout` seconds. Raises what the call raised, or TimeoutError.
        """
class Ledger:
    """
    Each rank's record of its asynchronous calls, in shared memory.
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
        A rank's record of the call with the same number as this rank's latest.
        """
    def note(self, digest: typing.SupportsInt | typing.SupportsIndex, text: str) -> int:
        """
        Record the next call; returns a rank whose call of the same number differs, or -1.
        """
    def text(self, rank: typing.SupportsInt | typing.SupportsIndex, digest: typing.SupportsInt | typing.SupportsIndex) -> str:
        """
        A rank's record of its latest call with that digest, or nothing.
        """
class UcxDevices:
    """
    UCX's transports and devices on this host.
    """
    def __init__(self, file: str, options: collections.abc.Sequence[tuple[str, str]]) -> None:
        """
        file: libucp, as for dlopen(). options: names and values of UCX's settings, without the prefix UCX_. Raises OSError, with the reason.
        """
    @property
    def path(self) -> str:
        ...
    @property
    def transports(self) -> list[str]:
        """
        Each as TRANSPORT/DEVICE.
        """
    @property
    def version(self) -> str:
        ...
class UcxWorker:
    """
    The links of one rank of a communicator.
    """
    def __init__(self, devices: UcxDevices, rank: typing.SupportsInt | typing.SupportsIndex, shared_memory: bool = False) -> None:
        """
        shared_memory: whether the devices are; then UCX does not notice that a peer has gone.
        """
    def close(self) -> None:
        ...
    def connect(self, rank: typing.SupportsInt | typing.SupportsIndex, address: bytes, sends: bytes, expects: bytes) -> None:
        """
        With another rank. address: of its worker. sends, expects: the secrets at the beginning of each message, 16 bytes. The three come from that rank, over an authenticated connection; UCX trusts the address.
        """
    def synchronize(self, seconds: typing.SupportsFloat | typing.SupportsIndex) -> list[int]:
        """
        Exchange messages with all connected ranks; returns those that have not answered after so many seconds.
        """
    @property
    def address(self) -> bytes:
        ...
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
    One rank's part of a communicator.
    """
    @staticmethod
    def blamed() -> int:
        """
        The world rank that the newest error is due to, unless it is a mismatch; -1: none.
        """
    @staticmethod
    def failure() -> str:
        """
        What note_failure() was given; empty: nothing.
        """
    @staticmethod
    def note_failure(text: str) -> None:
        """
        Note what ends this program: its peers are given it when the communicators are closed.
        """
    @staticmethod
    def segment_bytes(size: typing.SupportsInt | typing.SupportsIndex, scratch_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def __init__(self, segment: Segment, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, scratch_bytes: typing.SupportsInt | typing.SupportsIndex, world_ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], name: str, threads: bool, planner: typing.Any, here: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] = [], others: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]]] = [], ucx: UcxWorker | None = None) -> None:
        """
        planner: see Planner. Its result is checked, except for the address of a custom operator's function, which calls jump to unchecked. here: the ranks that share the segment; default all. others: for each of the remaining ranks, (rank, sockets): descriptors of three connected TCP sockets, which are taken over. ucx: connected with these ranks, it replaces the first socket.
        """
    def call(self, collective: typing.SupportsInt | typing.SupportsIndex, x: typing.Any, out: typing.Any, op: typing.Any, topology: typing.Any, root: typing.SupportsInt | typing.SupportsIndex, counts: typing.Any, scale: typing.Any, timeout: typing.Any, nonblocking: bool, note: typing.Any = None, step: typing.SupportsInt | typing.SupportsIndex = 0, copies: typing.SupportsInt | typing.SupportsIndex = 0) -> typing.Any:
        """
        Run one collective; returns its result, or a Handle. The ranks must agree on `note`, and on the `step` of a weighted one. copies: for arrays in device memory, the address of _cuda.StagingCopies.
        """
    def channel(self, sender: typing.SupportsInt | typing.SupportsIndex, receiver: typing.SupportsInt | typing.SupportsIndex, planner: typing.Any) -> Team:
        """
        The two-rank team over which `sender` sends to `receiver`.
        """
    def close(self) -> None:
        """
        Tell the peers that this rank has left; later calls raise.
        """
    def departed(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def expel(self, rank: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Tell a rank that this one continues in a communicator without it.
        """
    def give_up(self, text: str) -> None:
        ...
    def gone(self, rank: typing.SupportsInt | typing.SupportsIndex) -> bool:
        ...
    def mail(self, rank: typing.SupportsInt | typing.SupportsIndex) -> str:
        ...
    def place_of(self, x: typing.Any) -> str:
        """
        Where calls find an array: in a "window", "shared" as part of the heap, or "plain".
        """
    def report_lost(self, rank: typing.SupportsInt | typing.SupportsIndex, text: str) -> None:
        ...
    def report_mismatch(self, rank: typing.SupportsInt | typing.SupportsIndex, text: str) -> None:
        ...
    def report_timeout(self, rank: typing.SupportsInt | typing.SupportsIndex, text: str) -> None:
        ...
    def require_closable(self) -> None:
        """
        Raise if close() would wait for the calling thread.
        """
    def require_open(self) -> None:
        """
        Raise if it has been closed, or belongs to a parent process.
        """
    def require_sound(self) -> None:
        """
        Raise the fault that poisoned the communicator, if any.
        """
    def require_turn(self) -> None:
        """
        Raise if the caller is already inside a call of the communicator.
        """
    def set_mail(self, text: str) -> None:
        ...
    def set_patience(self, spin_us: typing.SupportsFloat | typing.SupportsIndex, yield_us: typing.SupportsFloat | typing.SupportsIndex, awake_us: typing.SupportsFloat | typing.SupportsIndex = 0.0) -> None:
        ...
    def set_survivor(self, value: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def survivor(self, rank: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def watch_hosts(self, hosts: collections.abc.Sequence[str], names: collections.abc.Sequence[str], numbers: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> None:
        """
        Begin heartbeats with the ranks on other hosts. By rank: what identifies its host in the job, the host's name and number.
        """
    def watch_peers(self) -> None:
        ...
    def window(self, segment: Segment, id: typing.SupportsInt | typing.SupportsIndex, stride: typing.SupportsInt | typing.SupportsIndex, bytes: typing.SupportsInt | typing.SupportsIndex) -> Window:
        ...
    @property
    def closed(self) -> bool:
        ...
    @property
    def expelled(self) -> bool:
        ...
    @property
    def heap_problem(self) -> str:
        """
        Why a peer's heap could not be mapped; empty: no such problem.
        """
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
    def spans_hosts(self) -> bool:
        ...
    @property
    def tile_bytes(self) -> tuple[float, float]:
        """
        Set the tile size in bytes for windows and for staged arrays; the same on all ranks.
        """
    @tile_bytes.setter
    def tile_bytes(self, arg1: tuple[typing.SupportsFloat | typing.SupportsIndex, typing.SupportsFloat | typing.SupportsIndex]) -> None:
        ...
class TableDirectory:
    """
    Which rank compiles a schedule for all, and where its tables are.
    """
    @staticmethod
    def segment_bytes() -> int:
        ...
    def __init__(self, team: Team, offset: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        offset: of segment_bytes() unused bytes in the team's segment.
        """
    def acquire(self, key: typing.SupportsInt | typing.SupportsIndex) -> tuple[str, int] | None:
        """
        Token and size of the segment with the tables; an empty token if this rank is to compile and publish them; None if it should compile for itself. Blocks while another rank compiles.
        """
    def fail(self, key: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        This rank cannot compile it for the others.
        """
    def note_taken(self, key: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        This rank has read its table.
        """
    def publish(self, key: typing.SupportsInt | typing.SupportsIndex, token: str, bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def taken(self, key: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        How many ranks have read theirs.
        """
class Carrier:
    """
    One rank's end of what an engine's ranks agree through.
    """
class Board(Carrier):
    """
    The carrier of ranks that share memory.
    """
    @staticmethod
    def segment_bytes(size: typing.SupportsInt | typing.SupportsIndex, slots: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    def __init__(self, segment: Segment, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, slots: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        `segment`: the same of all ranks, initially zero.
        """
    def prepare(self) -> None:
        """
        Called by one rank, before the others create their engines.
        """
class AgreedOperation:
    """
    An operation that all ranks have announced.
    """
    @property
    def absent(self) -> list[int]:
        """
        Ranks that have joined and need not announce it.
        """
    @property
    def collective(self) -> str:
        ...
    @property
    def device(self) -> bool:
        """
        Whether its arrays are in GPU memory.
        """
    @property
    def difference(self) -> str:
        """
        How the ranks differ, as a message; empty if they agree.
        """
    @property
    def last(self) -> int:
        """
        The rank that announced it last.
        """
    @property
    def name(self) -> str:
        ...
    @property
    def rows(self) -> list[int]:
        """
        The first extent of each rank's x; 0 for ranks that have joined.
        """
class Rounds(Carrier):
    """
    Between hosts: what follows from the ranks' messages, the same on all ranks that receive the same.
    """
    def __init__(self, rank: typing.SupportsInt | typing.SupportsIndex, world_ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], threshold: typing.SupportsInt | typing.SupportsIndex, cycle_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        `world_ranks`: the ranks' numbers in the world.
        """
    def announce(self, rank: typing.SupportsInt | typing.SupportsIndex, announcement: bytes) -> None:
        """
        Add a rank's announcement. Raises ValueError for an invalid one.
        """
    def await_batches(self, seconds: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Wait until this rank has completed all batches, at most a second; returns whether it has.
        """
    def await_caller(self, seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Wait until a caller of this rank waits for an operation, at most a second.
        """
    def await_news(self, seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Wait until this rank has something to tell, at most a second.
        """
    def cut(self) -> None:
        """
        Cut the complete operations into batches.
        """
    def end(self, kind: str, text: str, culprit: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Let what waits fail, once the batches have run, by a class in pycollective.errors.
        """
    def fetch(self) -> list[AgreedOperation]:
        """
        The next batch, as the engine fetches it; empty: there is none.
        """
    def note_silence(self, ranks: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], since: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Ranks that have not answered since a time of time.monotonic_ns(): for reports.
        """
    def refuse(self, rank: typing.SupportsInt | typing.SupportsIndex, name: str, why: str) -> None:
        """
        Report that a rank's submission was refused, and why.
        """
    def report(self, seconds: typing.SupportsFloat | typing.SupportsIndex = 0, all: bool = True) -> str:
        """
        Operations that have waited for `seconds`, and for which ranks, a line each: all, or those that this rank reports.
        """
    def take_news(self) -> tuple[list[bytes], list[tuple[str, str]], tuple[int, float] | None, bool, tuple[str, str, int] | None]:
        """
        What this rank tells the others: (announcements, [(name, why it was refused)], (threshold, cycle in seconds) or None, whether it closes its engine, (class, text, rank) of a fault or None).
        """
    def tune(self, threshold: typing.SupportsInt | typing.SupportsIndex, cycle_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Set both, from the next cut on.
        """
    @property
    def awaited(self) -> bool:
        """
        Whether a caller of this rank waits for an operation.
        """
    @property
    def cycle_seconds(self) -> float:
        ...
    @property
    def waiting(self) -> int:
        """
        Number of operations that some ranks have not announced.
        """
class Work:
    """
    An operation in progress or completed, with its result.
    """
    error: typing.Any
    result: typing.Any
    def flush(self) -> None:
        """
        Run it as soon as all ranks have submitted it, as if this thread waited for it.
        """
    def test(self) -> bool:
        """
        Whether it has completed, successfully or not.
        """
    def wait(self, timeout: typing.SupportsFloat | typing.SupportsIndex | None = None) -> typing.Any:
        """
        Block until it has completed, at most `timeout` seconds; returns the result, raises what the operation raised.
        """
    def when_done(self, callback: typing.Any) -> None:
        """
        Call `callback()` when it has completed: on the engine's thread, or immediately if it already has.
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
        Called by wait() after success, in the waiting thread.
        """
    @on_wait.setter
    def on_wait(self, arg0: typing.Any) -> None:
        ...
class Engine:
    """
    Named operations that the ranks of a team submit in any order.
    """
    def __init__(self, team: typing.Any, carrier: Carrier, buffer: typing.Any, buffers: typing.SupportsInt | typing.SupportsIndex, topology: typing.Any, run: typing.Any, warn_seconds: typing.SupportsFloat | typing.SupportsIndex, shutdown_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        `buffer`, for `buffers` tiles: in a window of the team; between hosts None.
        """
    def close(self) -> None:
        ...
    def loop(self) -> None:
        """
        Body of the engine's thread; returns after close().
        """
    def reduce_group(self, label: typing.Any, tensors: typing.Any, op: str, prescale: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, make: typing.Any, least: typing.SupportsInt | typing.SupportsIndex) -> typing.Any:
        """
        Allreduces of plain torch tensors in CPU memory as a group, named label(), several with numbers; waits for them. Results of `least` bytes or more are made by make(tensor); make=None: in place. Returns them in a list; None, before label() is called: submit items instead.
        """
    def refuse(self, name: str, why: str) -> None:
        """
        Tell the other ranks that this one's submission was refused, and why.
        """
    def report(self) -> str:
        """
        Which operations wait for which ranks, one per line.
        """
    def require_outside(self) -> None:
        """
        Raise if the caller is inside an operation of the engine.
        """
    def run(self, items: collections.abc.Sequence[typing.Any]) -> list[typing.Any]:
        """
        Submit items as a group and wait for them; returns their results.
        """
    def submit(self, items: collections.abc.Sequence[typing.Any], now: bool, grouped: bool = True) -> list[Work]:
        """
        Submit items, as a group or each for itself; `now`: the caller waits for them immediately.
        """
    def take_events(self) -> tuple[list[tuple[str, str, str, int, int]], list[tuple[int, int, int, int, list[int], list[int], int, list[int], list[tuple[int, int]]]]]:
        """
        Events since the last call: [(phase, collective, operation, begin, end)], [(begin, end, chunk, tile, source ranks, target ranks, counter, ranks that wait for it, [(peer, its counter)])]; ns of time.monotonic_ns().
        """
    def trace(self, on: bool) -> None:
        ...
    def traffic(self) -> tuple[int, int]:
        """
        Bytes reduced by allreduces so far, and batches run.
        """
    def tune(self, threshold: typing.SupportsInt | typing.SupportsIndex, cycle_seconds: typing.SupportsFloat | typing.SupportsIndex) -> None:
        """
        Set both for all ranks.
        """
    @property
    def cycle_seconds(self) -> float:
        ...
    @property
    def threshold(self) -> int:
        ...
class JaxGraphCall:
    """
    One execution of a custom call of XLA: a GraphCall.
    """
    def done(self, error: typing.Any) -> None:
        ...
    def output(self, index: typing.SupportsInt | typing.SupportsIndex, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> typing.Any:
        ...
    @property
    def inputs(self) -> list[typing.Any]:
        ...
class TensorFlowCall:
    """
    A GraphCall of hvd/graph_call.py.
    """
    def done(self, error: typing.Any) -> None:
        ...
    def output(self, index: typing.SupportsInt | typing.SupportsIndex, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]) -> typing.Any:
        ...
    @property
    def inputs(self) -> typing.Any:
        ...
class TensorFlowCompiledCall:
    """
    A GraphCall of hvd/graph_call.py.
    """
    def done(self, error: typing.Any) -> None:
        ...
    def output(self, index: typing.SupportsInt | typing.SupportsIndex, shape: typing.Any) -> typing.Any:
        ...
    @property
    def inputs(self) -> typing.Any:
        ...
def abandon_in_heap(address: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Free what was moved, before it is unmapped.
    """
def adopt_in_heap(nbytes: typing.SupportsInt | typing.SupportsIndex, provide: collections.abc.Callable[[], typing.SupportsInt | typing.SupportsIndex]) -> bool:
    """
    Move memory, a mapping of its own whose address provide() returns, into the heap of this process; it keeps its address. False: no room, and it was not called.
    """
def allocate_in_heap() -> typing.Any:
    """
    Let NumPy allocate large arrays in the heap of this process, in this context; returns what allocated before.
    """
def announcements(items: collections.abc.Sequence[typing.Any], size: typing.SupportsInt | typing.SupportsIndex, grouped: bool = True) -> list[bytes]:
    """
    This rank's announcements of items that are submitted as a group, or each for itself, among `size` ranks. Raises for an invalid item.
    """
def check_call(collective: str, rank: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, root: typing.SupportsInt | typing.SupportsIndex, counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex] | None, x: typing.Any, out: typing.Any) -> None:
    """
    Raise ValueError or TypeError for arrays that this rank's call cannot use: lengths, types, overlap. An array is a NumPy array, a HostBuffer, or (address, elements, dtype, writable); None: not given.
    """
def collectives() -> list[str]:
    """
    Names of the collectives, in numerical order.
    """
def combine(op: str, sources: collections.abc.Sequence[typing.Any], outs: collections.abc.Sequence[typing.Any], streamed: bool = False, prescale: typing.SupportsFloat | typing.SupportsIndex = 1.0, postscale: typing.SupportsFloat | typing.SupportsIndex = 1.0, weights: collections.abc.Sequence[typing.SupportsFloat | typing.SupportsIndex] = []) -> None:
    """
    Reduce local arrays into all of `outs` with the executor's vector code; `streamed`: bypass the caches. `prescale`: a factor on each array; `postscale`: on the result; `weights`: a factor for each array.
    """
def define_tensorflow_operations(libraries: collections.abc.Sequence[str], run: typing.Any, describe: typing.Any, types: typing.Any) -> None:
    """
    Adds PycollectiveCall to TensorFlow.
    
    Args: the paths of its libraries; run(key, call); describe(exception) -> (TF_Code, message); a dict from numbers of TF_DataType to numpy.dtype.
    
    Raises OSError if TensorFlow lacks a function or refuses.
    """
def define_tensorflow_xla_targets(library: str, start: str, finish: str, signature: typing.Any, run: typing.Any) -> None:
    """
    Adds two targets for custom calls to TensorFlow's XLA on the CPU. `start`: its backend_config is a key; takes the operands, and a ticket or zeros; returns a ticket. `finish`: takes the ticket; returns the results, and a uint8 for others to depend on. A ticket is two int64.
    
    Args: the path of the library; the targets' names; signature(key) -> (operands, results), each a list of (numpy.dtype, shape); run(key, call).
    
    Raises OSError if TensorFlow lacks a function.
    """
def dlpack_layout(array: typing.Any) -> tuple[int, tuple[int, ...]]:
    """
    An array's DLPack device type and shape, for arrays that have only __dlpack__.
    """
def dtype_name(dtype: typing.Any) -> str | None:
    """
    The library's name of a numpy.dtype, or None.
    """
def dtypes() -> list[str]:
    """
    Names of the element types.
    """
def heap_bytes() -> tuple[int, int]:
    """
    Bytes of the heap's arrays, and of the memory that it takes.
    """
def instruction_set() -> str:
    """
    Vector code in use: baseline, avx2 or avx512.
    """
def is_in_heap(address: typing.SupportsInt | typing.SupportsIndex) -> bool:
    ...
def jax_add_start(start: typing.Any) -> int:
    """
    The number of a Python function for custom calls.
    """
def jax_handlers(types: dict[int, typing.Any], describe: collections.abc.Callable[[typing.Any], str]) -> dict[str, typing.Any]:
    """
    The handlers, by target name, as capsules for jax.ffi.register_ffi_target. `types`: XLA's number of an element type -> numpy.dtype; `describe(exception)`: the text of an error.
    """
def jax_plan(team: typing.Any, collective: str, dtype: str, count: typing.SupportsInt | typing.SupportsIndex, op: typing.Any, root: typing.SupportsInt | typing.SupportsIndex, counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], note: str, timeout: typing.Any) -> int:
    """
    Plan a call for custom calls to run; returns its number. Arguments as for Team.call; `count`: elements, where `counts` does not determine them. Keeps the team alive.
    """
def jax_plan_both(send: typing.SupportsInt | typing.SupportsIndex, receive: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    The number of a call that runs two planned messages at the same time.
    """
def method_of(owner: type, described: typing.Any, name: str, signature: str, handle: type) -> typing.Any:
    """
    A descriptor for the class `owner`: the method of this name, which `described` has the signature and the docstring of. A nonblocking form returns a `handle(work, value)`.
    """
def operators() -> list[tuple[str, str]]:
    """
    (name, meaning) of the reduction operators, in numerical order.
    """
def placement(collective: str, x: typing.Any, out: typing.Any, x_shared: bool, out_shared: bool) -> int:
    """
    Which arrays of a call peers may access directly: 1 the input, 2 the output, 4 in place. `x_shared`, `out_shared`: whether peers have mapped their memory.
    """
def reducer_in_place(communicator: typing.Any, timeout: typing.SupportsFloat | typing.SupportsIndex, sum: typing.Any, avg: typing.Any) -> typing.Any:
    """
    A function (inputs, options) that makes a process group's allreduces in place of a list of one plain torch tensor, with torch's AllreduceOptions. It returns None, or the Handle of an asynchronous call; NotImplemented, without effect: only the group's method takes these arguments, or reports what is wrong with them. `timeout`: in seconds, if the options have none; `sum`, `avg`: torch's operators of these names.
    """
def report_on_signal(number: typing.SupportsInt | typing.SupportsIndex) -> bool:
    """
    Make engines report to standard error which operations wait for which ranks, on this signal.
    """
def set_numpy_allocator(handler: typing.Any) -> typing.Any:
    """
    Let NumPy allocate with what was returned before.
    """
def settings() -> list[tuple[str, float, float, str]]:
    """
    (variable, default, value, meaning) of each environment variable.
    """
def takes(op: str, dtype: str) -> bool:
    """
    Whether the operator supports the element type.
    """
def timeout_of(timeout: typing.Any) -> float:
    """
    A call's timeout in seconds; None: PYCOLLECTIVE_TIMEOUT. Raises ValueError or TypeError.
    """
ALWAYS_STAGED: int = 4096
ALWAYS_STAGED_BETWEEN_HOSTS: int = 262144

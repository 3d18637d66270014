"""
The GPU side of pycollective: kernels, windows and launches.
"""
from __future__ import annotations
import collections.abc
import typing
import typing_extensions
__all__: list[str] = ['CustomOperator', 'DeviceArray', 'DeviceMemory', 'DlpackView', 'Event', 'Graph', 'MOST_RANKS', 'MOST_VIRTUAL_RANKS', 'NcclComm', 'NcclLibrary', 'Plan', 'StagingCopies', 'Stream', 'Team', 'allocate_plain', 'allocate_vmm', 'begin_capture', 'copy', 'current_device', 'custom_program', 'device_count', 'device_of', 'driver_version', 'end_capture', 'idle', 'import_vmm', 'is_capturing', 'load_custom', 'move', 'open_ipc', 'probe_read', 'probe_write', 'properties', 'runtime_version', 'synchronize', 'why_no_device']
class Stream:
    """
    A stream that does not synchronize with the default stream, of the greatest priority: calls do not queue behind the kernels of a backward pass.
    """
    def __init__(self, device: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    @property
    def address(self) -> int:
        ...
    @property
    def device(self) -> int:
        ...
    @property
    def priority(self) -> int:
        ...
class Event:
    """
    A point in a stream.
    """
    def __init__(self, device: typing.SupportsInt | typing.SupportsIndex, timed: bool = False) -> None:
        ...
    def done(self) -> bool:
        ...
    def hold_back(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Make the stream wait until the point is reached.
        """
    def record(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def seconds_since(self, earlier: Event) -> float:
        """
        Both events must have timing and be reached.
        """
class Graph:
    """
    Captured work.
    """
    def launch(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
class DeviceMemory:
    """
    This process's device memory, or a mapping of a peer's.
    """
    def export_fd(self) -> int:
        """
        A file descriptor with which another process maps it; the caller closes it.
        """
    def ipc_handle(self) -> bytes:
        """
        A 64-byte handle with which another process opens it.
        """
    @property
    def address(self) -> int:
        ...
    @property
    def device(self) -> int:
        ...
    @property
    def nbytes(self) -> int:
        ...
class DlpackView:
    """
    Another library's CUDA array, from its DLPack capsule; not copied.
    """
    def __init__(self, capsule: typing.Any) -> None:
        ...
    @property
    def address(self) -> int:
        ...
    @property
    def contiguous(self) -> bool:
        ...
    @property
    def device(self) -> int:
        ...
    @property
    def dtype(self) -> str:
        ...
    @property
    def read_only(self) -> bool:
        ...
    @property
    def shape(self) -> tuple:
        ...
class DeviceArray:
    """
    A C-contiguous array in device memory. torch.from_dlpack and cupy.from_dlpack accept it without a copy.
    """
    def __dlpack__(self, *, stream: typing.Any = None, max_version: typing.Any = None, dl_device: typing.Any = None, copy: typing.Any = None) -> typing_extensions.CapsuleType:
        ...
    def __dlpack_device__(self) -> tuple[int, int]:
        ...
    def __init__(self, owner: typing.Any, address: typing.SupportsInt | typing.SupportsIndex, shape: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], dtype: str, device: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def __repr__(self) -> str:
        ...
    def copy_from_host(self, host: typing_extensions.Buffer, stream: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Fill from a contiguous host array; blocks until done.
        """
    def copy_to_host(self, host: typing_extensions.Buffer, stream: typing.SupportsInt | typing.SupportsIndex = 0) -> None:
        """
        Copy into a contiguous host array; blocks until done.
        """
    @property
    def __cuda_array_interface__(self) -> dict:
        ...
    @property
    def address(self) -> int:
        ...
    @property
    def device(self) -> int:
        ...
    @property
    def dtype(self) -> str:
        ...
    @property
    def nbytes(self) -> int:
        ...
    @property
    def shape(self) -> tuple:
        ...
    @property
    def size(self) -> int:
        """
        Elements.
        """
class StagingCopies:
    """
    Copies between a device and pinned host memory, in two streams of their own.
    """
    def __init__(self, device: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def drain(self) -> None:
        """
        Wait for all copies so far.
        """
    def hold_back(self, stream: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Make the stream wait for all copies so far.
        """
    @property
    def address(self) -> int:
        """
        For _core.Team.call, while this object exists.
        """
    @property
    def memory_bytes(self) -> int:
        """
        Pinned memory allocated so far.
        """
class CustomOperator:
    """
    A user-defined operator, compiled for one element type.
    """
    def load(self, device: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Load it on a device now; may wait until the device is idle.
        """
class Plan:
    """
    The reusable part of a call.
    """
    @property
    def channels(self) -> int:
        """
        Largest number of blocks of a rank.
        """
    @property
    def low_latency(self) -> bool:
        ...
    @property
    def placement(self) -> int:
        ...
class Team:
    """
    One process's part of a communicator on GPUs.
    """
    @staticmethod
    def mailbox_bytes(size: typing.SupportsInt | typing.SupportsIndex, channels: typing.SupportsInt | typing.SupportsIndex, scratch_bytes: typing.SupportsInt | typing.SupportsIndex) -> int:
        ...
    @staticmethod
    def most_channels(device: typing.SupportsInt | typing.SupportsIndex, sharing: typing.SupportsInt | typing.SupportsIndex) -> int:
        """
        Blocks that each of `sharing` ranks on the device can run concurrently; 0: too many ranks.
        """
    def __init__(self, device: typing.SupportsInt | typing.SupportsIndex, size: typing.SupportsInt | typing.SupportsIndex, first_rank: typing.SupportsInt | typing.SupportsIndex, ranks_here: typing.SupportsInt | typing.SupportsIndex, mailboxes: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], channels: typing.SupportsInt | typing.SupportsIndex, scratch_bytes: typing.SupportsInt | typing.SupportsIndex, shared: bool, plan_bytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        `shared`: the device also runs other ranks of the communicator. `plan_bytes`: size of the memory for plans to begin with.
        """
    def abort(self) -> None:
        """
        Make the kernels in flight give up.
        """
    def add_window(self, id: typing.SupportsInt | typing.SupportsIndex, bases: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], nbytes: typing.SupportsInt | typing.SupportsIndex) -> None:
        ...
    def end(self) -> bool:
        """
        Complete or abandon the calls in flight within seconds.
        """
    def fault(self) -> typing.Any:
        """
        (kind, rank, peer, call, expected, found, base) of the first fault, or None.
        """
    def idle(self) -> bool:
        """
        Whether no call is in flight.
        """
    def locate(self, rank_index: typing.SupportsInt | typing.SupportsIndex, address: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> tuple[int, int] | None:
        """
        (window, offset) if the bytes are in a window of this rank, else None.
        """
    def low_latency_plan(self, dtype: str, op: typing.SupportsInt | typing.SupportsIndex, custom: CustomOperator, prescale: typing.SupportsFloat | typing.SupportsIndex, divisor: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, reduces: bool, exchanges: collections.abc.Sequence[tuple[collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]]], longest: typing.SupportsInt | typing.SupportsIndex, digest: typing.SupportsInt | typing.SupportsIndex) -> Plan:
        """
        A plan of the low-latency path: for each local rank the offsets and counts that it sends to and receives from each rank, in elements; `longest`: the longest message of any pair.
        """
    def plan(self, schedule: tuple[collections.abc.Sequence[typing_extensions.Buffer], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]], fallback: tuple[collections.abc.Sequence[typing_extensions.Buffer], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex]] | None, dtype: str, op: typing.SupportsInt | typing.SupportsIndex, custom: CustomOperator, prescale: typing.SupportsFloat | typing.SupportsIndex, divisor: typing.SupportsFloat | typing.SupportsIndex, postscale: typing.SupportsFloat | typing.SupportsIndex, reduces: bool, weighted: bool, placement: typing.SupportsInt | typing.SupportsIndex, negotiates: bool, digest: typing.SupportsInt | typing.SupportsIndex) -> Plan:
        """
        A plan of a compiled schedule: (a table for each local rank, length, input offset and output offset of each chunk in elements); `fallback`: the same staged.
        """
    def remove_window(self, id: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Wait for the calls in flight, then remove the window.
        """
    def run(self, plan: Plan, buffers: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], stream: typing.SupportsInt | typing.SupportsIndex, max_channels: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex, copies: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]] = ()) -> None:
        """
        Enqueue a call on the stream: (input, output) addresses for each local rank. `copies`: (into, source, bytes) copies to run before it, after all earlier calls of the team.
        """
    def wait(self) -> None:
        """
        Wait for the calls in flight.
        """
    @property
    def device(self) -> int:
        ...
    @property
    def low_latency_bytes(self) -> int:
        """
        The longest message that the low-latency path supports.
        """
    @property
    def low_latency_channels(self) -> int:
        """
        At most so many channels.
        """
    @property
    def low_latency_share(self) -> int:
        """
        Bytes of a message for each channel that it takes, up to low_latency_channels of them.
        """
    @property
    def plan_memory(self) -> tuple[int, int]:
        """
        (bytes for plans, bytes in use).
        """
class NcclLibrary:
    """
    A loaded copy of NCCL.
    """
    OLDEST: typing.ClassVar[int] = 21700
    def __init__(self, file: str) -> None:
        ...
    def unique_id(self) -> bytes:
        ...
    @property
    def path(self) -> str:
        """
        The file that was loaded.
        """
    @property
    def version(self) -> int:
        """
        NCCL's version code, 22304 for 2.23.4.
        """
    @property
    def version_text(self) -> str:
        ...
class NcclComm:
    """
    One rank's part of an NCCL communicator.
    """
    def __init__(self, library: NcclLibrary, unique_id: bytes, size: typing.SupportsInt | typing.SupportsIndex, rank: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex, most_blocks: typing.SupportsInt | typing.SupportsIndex) -> None:
        """
        Start connecting to the other ranks; `settle` waits for them.
        """
    def abort(self) -> None:
        ...
    def close(self, timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        False if it had to be aborted.
        """
    def failure(self) -> str | None:
        """
        The asynchronous error so far, or None.
        """
    def run(self, collective: str, x: typing.SupportsInt | typing.SupportsIndex, out: typing.SupportsInt | typing.SupportsIndex, count: typing.SupportsInt | typing.SupportsIndex, counts: collections.abc.Sequence[typing.SupportsInt | typing.SupportsIndex], type: typing.SupportsInt | typing.SupportsIndex, itemsize: typing.SupportsInt | typing.SupportsIndex, op: typing.SupportsInt | typing.SupportsIndex, scalar: bytes, root: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex, timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        Enqueue a call on its stream; False if a peer did not arrive within the time.
        """
    def settle(self, timeout: typing.SupportsFloat | typing.SupportsIndex) -> bool:
        """
        False when the time has expired.
        """
def allocate_plain(device: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> DeviceMemory:
    """
    cudaMalloc memory, zeroed.
    """
def allocate_vmm(device: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> DeviceMemory:
    """
    Memory from the driver's virtual memory management, zeroed.
    """
def begin_capture(stream: typing.SupportsInt | typing.SupportsIndex) -> None:
    ...
def copy(into: typing.SupportsInt | typing.SupportsIndex, source: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex, stream: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
    """
    Copy between host and device memory in any direction, in stream order.
    """
def current_device() -> int:
    ...
def custom_program(dtype: str) -> bytes:
    """
    The kernels of an element type, as a fatbin of LTO-IR that lacks the function pc_operator.
    """
def device_count() -> int:
    ...
def device_of(address: typing.SupportsInt | typing.SupportsIndex) -> int | None:
    """
    The device that owns an address, or None.
    """
def driver_version() -> int:
    """
    1000 * major + 10 * minor; 0: no driver.
    """
def end_capture(stream: typing.SupportsInt | typing.SupportsIndex) -> Graph:
    ...
def idle() -> bool:
    """
    Whether no kernel of a communicator of this process is in flight.
    """
def import_vmm(device: typing.SupportsInt | typing.SupportsIndex, descriptor: typing.SupportsInt | typing.SupportsIndex, nbytes: typing.SupportsInt | typing.SupportsIndex) -> DeviceMemory:
    """
    Memory that another process has exported as a file descriptor.
    """
def is_capturing(stream: typing.SupportsInt | typing.SupportsIndex) -> bool:
    ...
def load_custom(dtype: str, image: bytes) -> CustomOperator:
    """
    The linked image, as Team.plan takes it.
    """
def move(device: typing.SupportsInt | typing.SupportsIndex, rows: collections.abc.Sequence[tuple[typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex, typing.SupportsInt | typing.SupportsIndex]], stream: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Copy within device memory, in few launches: rows of (to, from, bytes); a `from` of 0 writes zeros.
    """
def open_ipc(device: typing.SupportsInt | typing.SupportsIndex, handle: str, nbytes: typing.SupportsInt | typing.SupportsIndex) -> DeviceMemory:
    """
    Another process's cudaMalloc memory.
    """
def probe_read(device: typing.SupportsInt | typing.SupportsIndex, address: typing.SupportsInt | typing.SupportsIndex, words: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    Number of words that differ from what probe_write writes.
    """
def probe_write(device: typing.SupportsInt | typing.SupportsIndex, address: typing.SupportsInt | typing.SupportsIndex, words: typing.SupportsInt | typing.SupportsIndex, seed: typing.SupportsInt | typing.SupportsIndex) -> None:
    """
    Write a pattern of 8-byte words with a kernel.
    """
def properties(device: typing.SupportsInt | typing.SupportsIndex) -> dict:
    ...
def runtime_version() -> int:
    """
    Version of the runtime that is linked in.
    """
def synchronize(stream: typing.SupportsInt | typing.SupportsIndex, device: typing.SupportsInt | typing.SupportsIndex | None = None) -> None:
    ...
def why_no_device() -> str | None:
    """
    Why no GPU can be used, in one sentence; None if one can.
    """
MOST_RANKS: int = 64
MOST_VIRTUAL_RANKS: int = 32

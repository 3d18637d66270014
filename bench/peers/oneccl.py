"""oneCCL, by ctypes through the C API of libccl.so.2 (``onecclAllReduce`` and others, as in NCCL), on host memory.

Works with the package ``oneccl`` 2022.1, installed beside the Intel MPI (``impi-rt``) whose mpirun starts the ranks.
"""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ranks.world import World, first_problem
from ..result import available_cores
from . import Array, Call, Peer, PeerUnavailable
from .mpi import open as open_mpi

if TYPE_CHECKING:
    from ..workload.cases import Case

__all__ = ["OneCclPeer", "open"]

_TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
_COLLECTIVES = ("allreduce", "broadcast", "reduce", "reduce_scatter", "allgather", "alltoall")
_LIBRARY, _PLUGIN = "libccl.so.2", "libccl_legacy_cpu.so"
_SETTINGS = {"CCL_ATL_TRANSPORT": "mpi", "CCL_WORKER_OFFLOAD": "0"}
"""Unless the environment sets them. On two cores a call takes 5 to 12 times as long where a rank has a worker."""


class _UniqueId(ctypes.Structure):
    _fields_ = [("data", ctypes.c_ubyte * 4096)]


class OneCclPeer(Peer):
    """A communicator of all ranks."""

    name = "oneccl"

    def __init__(self, library: Any, comm: Any, ranks: int) -> None:
        self._library, self._comm, self._ranks = library, comm, ranks
        version = ctypes.c_int()
        library.onecclGetVersion(ctypes.byref(version))
        self.version = f"oneCCL {version.value // 10000}.{version.value // 100 % 100}.{version.value % 100}"

    def supports(self, case: Case) -> bool:
        if case.collective not in _COLLECTIVES or case.dtype not in _TYPES:
            return False
        return case.op in _OPS or not case.kind.reduces

    def _made(self, name: str, send: Array, recv: Array, count: int, *others: int) -> Call:
        """A call on these arrays, which has succeeded once: later ones do not look at the code that they return."""
        call = functools.partial(
            getattr(self._library, f"oneccl{name}"),
            *(array.ctypes.data_as(ctypes.c_void_p) for array in (send, recv)),
            *(ctypes.c_size_t(count), _TYPES[send.dtype.name], *others, self._comm, None),  # no stream: host memory
        )
        if code := call():
            raise RuntimeError(f"oneccl{name} failed: {_error(self._library, code)}")
        return call

    def allreduce(self, send: Array, recv: Array, op: str) -> Call:
        return self._made("AllReduce", send, recv, recv.size, _OPS[op])

    def broadcast(self, buffer: Array, root: int) -> Call:
        return self._made("Broadcast", buffer, buffer, buffer.size, root)

    def reduce(self, send: Array, recv: Array, op: str, root: int) -> Call:
        return self._made("Reduce", send, recv, send.size, _OPS[op], root)

    def reduce_scatter(self, send: Array, recv: Array, op: str) -> Call:
        return self._made("ReduceScatter", send, recv, recv.size, _OPS[op])

    def allgather(self, send: Array, recv: Array) -> Call:
        return self._made("AllGather", send, recv, send.size)

    def alltoall(self, send: Array, recv: Array) -> Call:
        return self._made("AllToAll", send, recv, send.size // self._ranks)

    def close(self) -> None:
        self._library.onecclCommDestroy(self._comm)


def open(world: World) -> OneCclPeer:
    """oneCCL on the ranks of this world; PeerUnavailable without it, or if Intel MPI did not start them."""
    mpi = open_mpi(world)
    if mpi.name != "impi":
        raise PeerUnavailable(f"oneCCL needs ranks started by Intel MPI, but mpi4py uses {mpi.version}")
    library, problem = None, ""
    try:
        library = _load_library(world.size > available_cores())
    except OSError as error:
        problem = f"oneCCL cannot be loaded: {error}"
    if problem := first_problem(world, problem):
        raise PeerUnavailable(problem)
    comm, code = _connect(library, world)
    if code:
        raise PeerUnavailable(f"oneCCL cannot connect the ranks: {_error(library, code)}")
    return OneCclPeer(library, comm, world.size)


def _connect(library: Any, world: World) -> tuple[Any, int]:
    """A communicator, and the code of the first call that failed or 0."""
    identity = _UniqueId()
    code = library.onecclGetUniqueId(ctypes.byref(identity)) if world.rank == 0 else 0
    code, data = world.share((code, bytes(identity)))[0]
    comm, size = ctypes.c_void_p(), ctypes.c_size_t(world.size)
    identity = _UniqueId.from_buffer_copy(data)
    return comm, code or library.onecclCommInitRank(ctypes.byref(comm), size, identity, world.rank)


def _error(library: Any, code: int) -> str:
    library.onecclGetErrorString.restype = ctypes.c_char_p
    text: bytes = library.onecclGetErrorString(code)
    return text.decode()


def _load_library(shares_cores: bool) -> Any:
    """oneCCL with its plugin for CPUs; OSError with the reason.  ``shares_cores``: ranks exceed cores."""
    folders = [_folder_of_mpi(), Path(os.environ.get("CCL_ROOT", "/")) / "lib"]
    folder = next((folder for folder in folders if (folder / _LIBRARY).exists()), None)
    if folder is None:
        raise FileNotFoundError(f"{_LIBRARY} is neither beside Intel MPI's library nor in $CCL_ROOT/lib")
    settings = {**_SETTINGS, "CCL_PLUGIN": str(folder / _PLUGIN)}
    for name, value in (settings | {"CCL_YIELD": "sched_yield"} if shares_cores else settings).items():
        os.environ.setdefault(name, value)
    _load(folder / _PLUGIN)
    return _load(folder / _LIBRARY)


def _folder_of_mpi() -> Path:
    """Where this process has loaded its MPI library from."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next((Path(line.split(maxsplit=5)[5]).parent for line in lines if "/libmpi.so" in line), Path("/"))


def _load(file: Path) -> Any:
    """Load a library and, first, those of its folder that it needs: the package relies on LD_LIBRARY_PATH for them."""
    loaded: set[str] = set()
    while True:
        try:
            return ctypes.CDLL(str(file))
        except OSError as error:
            missing = str(error).partition(":")[0]
            if "/" in missing or missing in loaded or not (file.parent / missing).exists():  # with a path: this one
                raise
            loaded.add(missing)
            _load(file.parent / missing)

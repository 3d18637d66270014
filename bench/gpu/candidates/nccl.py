"""NCCL with several ranks on one GPU in one process: NCCL 2.30 or newer, configured to allow it, with limited channels.

The library is that of PYCOLLECTIVE_NCCL, of the package nvidia-nccl, or found by the loader.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from ..clock import Candidate, Clock
from .buffers import Buffers

OLDEST = 23000
"""NCCL's number for 2.30.0, the first that allows ranks to share a GPU."""
LONG = 16 << 20
"""Bytes from which calls are not captured."""
ENVIRONMENT = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
"""Before CUDA starts: streams that share a hardware queue wait for one another, and the ranks' kernels then hang."""
_DTYPES = {"float32": 7, "float16": 6, "bfloat16": 9}
_SUM = 0


class _UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


def prepare(ranks: int, blocks: int) -> None:
    """Set the variables that NCCL reads at startup; call it before the library is loaded.

    Args:
        blocks: that run on the GPU concurrently; NCCL's kernels take half of them.
    """
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    os.environ.setdefault("NCCL_MAX_CTAS", str(max(1, min(16, blocks // (2 * ranks)))))


def find() -> tuple[Any, int, str]:
    """(library, version, reason): the newest NCCL available, or None and the reason."""
    named = os.environ.get("PYCOLLECTIVE_NCCL")
    packaged = [str(p) for f in sys.path for p in Path(f or ".").glob("nvidia/nccl/lib/libnccl.so.2")]
    found: tuple[Any, int] = (None, 0)
    for place in [named] if named else [*packaged, "libnccl.so.2"]:
        try:
            library = ctypes.CDLL(str(place))
        except OSError:
            continue
        version = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(version))
        if version.value > found[1]:
            found = (library, version.value)
    if found[0] is None:
        return None, 0, "no NCCL was found"
    if found[1] < OLDEST:
        return None, found[1], f"NCCL {text_of(found[1])} does not support several ranks on one GPU; 2.30 or newer does"
    return *found, ""


def text_of(version: int) -> str:
    """`2.30.1` for 23001; empty for 0."""
    return f"{version // 10000}.{version % 10000 // 100}.{version % 100}" if version else ""


def about(ranks: int) -> dict[str, Any]:
    """Version and settings, for the provenance."""
    settings = {name: value for name, value in sorted(os.environ.items()) if name.startswith("NCCL_")}
    return {"nccl": text_of(find()[1]), f"nccl_settings_{ranks}_ranks": settings}


class Nccl:
    """A communicator of n ranks on one GPU.

    Raises:
        RuntimeError: NCCL reports an error.
    """

    def __init__(self, library: Any, clock: Clock, ranks: int) -> None:
        self._library, self._clock = library, clock
        self._streams = [clock.cuda.Stream(clock.device) for _ in range(ranks)]
        self._comms = [ctypes.c_void_p() for _ in range(ranks)]
        number = _UniqueId()
        self._check(library.ncclGetUniqueId(ctypes.byref(number)))
        self._check(library.ncclGroupStart())
        for rank, comm in enumerate(self._comms):
            self._check(library.ncclCommInitRank(ctypes.byref(comm), ranks, number, rank))
        self._check(library.ncclGroupEnd())

    def _check(self, result: int) -> None:
        if result != 0:
            self._library.ncclGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"NCCL: {self._library.ncclGetErrorString(result).decode()}")

    def candidate(self, buffers: Buffers, collective: str) -> Candidate:
        """An allreduce or broadcast of all ranks on every set of buffers, between fork and join of their streams."""
        dtype = _DTYPES[buffers.dtype]
        word = ctypes.c_void_p

        def one(rank: int, x: int, out: int) -> int:
            tail = (self._comms[rank], word(self._streams[rank].address))
            count = ctypes.c_size_t(buffers.count)
            if collective == "broadcast":
                return int(self._library.ncclBroadcast(word(x), word(out), count, dtype, 0, *tail))
            return int(self._library.ncclAllReduce(word(x), word(out), count, dtype, _SUM, *tail))

        def call(i: int) -> None:
            inputs, outputs = buffers.inputs[i % buffers.sets], buffers.outputs[i % buffers.sets]
            self._fork()
            self._check(self._library.ncclGroupStart())
            for rank, (x, out) in enumerate(zip(inputs, outputs, strict=True)):
                at_root = collective == "broadcast" and rank == 0
                self._check(one(rank, x.address, x.address if at_root else out.address))
            self._check(self._library.ncclGroupEnd())
            self._join()

        # A capture of many streams may hang; a long call does not need one.
        return Candidate("nccl", call, captures=buffers.nbytes < LONG)

    def _fork(self) -> None:
        event = self._clock.cuda.Event(self._clock.device)
        event.record(self._clock.stream)
        for stream in self._streams:
            event.hold_back(stream.address)

    def _join(self) -> None:
        for stream in self._streams:
            event = self._clock.cuda.Event(self._clock.device)
            event.record(stream.address)
            event.hold_back(self._clock.stream)

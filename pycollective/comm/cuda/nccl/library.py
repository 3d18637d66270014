"""NCCL: which copy is used, and its capabilities. Loaded at run time, never linked.

A process should use one of several copies on a machine: two would each need their own memory and settings. So the copy
already loaded in the process (torch's) comes first, then the wheel nvidia-nccl-cu*, then the system's.
The environment variable PYCOLLECTIVE_NCCL names another file and disables the search.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycollective import settings
from pycollective.comm.arguments.arrays import numpy_dtype
from pycollective.comm.cuda.arrays import ITEMSIZE
from pycollective.comm.cuda.signature import Signature
from pycollective.comm.planner import NCCL as NCCL
from pycollective.errors import CommunicatorError

SHARES_GPUS = 23000
"""The first version that allows several ranks per GPU."""
_SHARES_IF = "NCCL_MULTI_RANK_GPU_ENABLE"
_SETTING = "PYCOLLECTIVE_NCCL"
_NAME = re.compile(r"/libnccl\.so[.0-9]*$")

_TYPES = {
    "int8": 0, "uint8": 1, "bool": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "float8_e4m3fn": 10, "float8_e5m2": 11,
}  # fmt: skip
_SMALLEST = frozenset(("float8_e4m3fn", "float8_e5m2"))
_SMALLEST_SINCE = 22400
_OPERATORS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_ON_BOOL = {"sum": 2, "max": 2, "bor": 2, "lor": 2, "prod": 3, "min": 3, "band": 3, "land": 3}
_BYTES = 0  # ncclInt8: data that is only moved is moved as bytes


@dataclass(frozen=True)
class Library:
    """A loaded copy of NCCL.

    Attributes:
        handle: `_cuda.NcclLibrary`.
        source: "torch", "process", "wheel", "system" or "PYCOLLECTIVE_NCCL".
        path: the file.
        version: NCCL's own code: 22304 for 2.23.4. version_text: "2.23.4".
        reason: why this copy was chosen.
    """

    handle: Any
    source: str
    path: str
    version: int
    version_text: str
    reason: str

    def __str__(self) -> str:
        return f"NCCL {self.version_text} from {self.path} ({self.source}: {self.reason})"


@functools.cache
def library() -> Library:
    """The copy used by this process; searched once.

    Raises:
        CommunicatorError: no usable copy; states what was tried.
    """
    module = importlib.import_module("pycollective._cuda")
    tried: list[str] = []
    for source, file, reason in _candidates():
        try:
            handle = module.NcclLibrary(file)
        except CommunicatorError as error:
            tried.append(f"{source}: {error}")
            continue
        reason = "; ".join([reason, *tried])
        return Library(handle, source, os.path.realpath(handle.path), handle.version, handle.version_text, reason)
    raise CommunicatorError(
        f"no NCCL can be used: {'; '.join(tried)}; `pip install nvidia-nccl-cu13` (or -cu12) provides it, and "
        f"{_SETTING}=FILE names a copy"
    )


def why_not() -> str | None:
    """Why NCCL cannot be used here; None if it can."""
    try:
        library()
    except (CommunicatorError, ImportError) as error:
        return str(error)
    return None


def describe() -> str:
    """Which copy is used and why, or why none is: one line for `doctor` and `explain`."""
    return why_not() or str(library())


def _candidates() -> Iterator[tuple[str, str, str]]:
    """(source, file, reason) in the order tried."""
    named = settings.read(_SETTING)
    if named:
        yield _SETTING, named, "named by that variable"
        return
    mapped = _in_this_process()
    if mapped is not None:
        by_torch = "torch" in sys.modules
        yield ("torch", mapped, "torch has loaded it") if by_torch else ("process", mapped, "it is loaded already")
        return  # a second copy would only do harm
    why = "torch has loaded none" if "torch" in sys.modules else "torch is not loaded"
    yield from (("wheel", file, why) for file in _of_wheels())
    yield "system", "libnccl.so.2", f"{why}, and no wheel nvidia-nccl-cu* is installed"


def _in_this_process() -> str | None:
    """The file of an NCCL that is mapped into this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = (line[line.find("/") :] for line in lines if "/" in line)
    return next(filter(_NAME.search, paths), None)


def _of_wheels() -> Iterator[str]:
    """Library paths of the packages nvidia-nccl-cu*."""
    files = (Path(folder or ".", "nvidia", "nccl", "lib", "libnccl.so.2") for folder in sys.path)
    return (str(file) for file in files if file.exists())


# -- what NCCL supports ---------------------------------------------------------------------------------------------


def lacks(s: Signature, version: int, capability: tuple[int, int]) -> str | None:
    """Why NCCL cannot execute a call; None if it can.

    Args:
        version: of the library, as NCCL's code.
        capability: compute capability of the GPU.
    """
    if s.row.prefix != "none" or s.row.weighted:
        return f"NCCL has no {s.collective}"
    if not s.row.reduces:
        return None
    if not isinstance(s.op, str):
        return "NCCL does not support user-defined operators"
    if s.dtype not in _TYPES:
        return f"NCCL does not reduce {s.dtype}"
    if s.dtype in _SMALLEST and (version < _SMALLEST_SINCE or capability < (9, 0)):
        return f"NCCL reduces {s.dtype} from version 2.24 and compute capability 9.0 on"
    if s.op not in (_ON_BOOL if s.dtype == "bool" else _OPERATORS):
        return f"NCCL has no operator {s.op} for {s.dtype}"
    factor = s.scale[0] * s.scale[1]
    if s.scale == (1.0, 1.0):
        return None
    if s.op not in ("sum", "avg") or s.dtype == "bool":
        return f"NCCL scales sums and averages, not {s.op} of {s.dtype}"
    if "int" in s.dtype and (s.op == "avg" or factor != int(factor)):
        return f"NCCL scales {s.dtype} by integers, and only for sums"
    return None


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A call's element type and operator in NCCL's numbers.

    Attributes:
        type: ncclDataType_t. width: elements of that type per element of ours: more than one if data is only moved.
        op: ncclRedOp_t. scalar: a factor on every contribution, in the element type's bytes; empty for none.
    """

    type: int
    width: int
    itemsize: int
    op: int
    scalar: bytes


def arithmetic(s: Signature, size: int) -> Arithmetic:
    """NCCL's type and operator for a call that it supports.

    Both factors of a call, and the division of a scaled average, become one factor on the contributions: the only
    place where NCCL multiplies.
    """
    if not s.row.reduces:
        return Arithmetic(_BYTES, ITEMSIZE[s.dtype], 1, 0, b"")
    assert isinstance(s.op, str)
    op = (_ON_BOOL if s.dtype == "bool" else _OPERATORS)[s.op]
    scalar = b""
    if s.scale != (1.0, 1.0):
        op, factor = 0, s.scale[0] * s.scale[1] / (size if s.op == "avg" else 1)
        scalar = numpy_dtype(s.dtype).type(factor).tobytes()
    return Arithmetic(_TYPES[s.dtype], 1, ITEMSIZE[s.dtype], op, scalar)


def blocks_for(ranks_here: int, multiprocessors: int, version: int, requested: int) -> int:
    """How many thread blocks NCCL may use on this GPU; 0 for no limit.

    Ranks that share a GPU wait for each other on it, so the blocks of all of them must fit at the same time.

    Args:
        ranks_here: ranks of the communicator on this GPU.
        requested: the call's max_channels, or 0.

    Raises:
        CommunicatorError: these ranks cannot share it; states what is missing.
    """
    if ranks_here == 1:
        return requested
    if version < SHARES_GPUS:
        raise CommunicatorError(
            f"{ranks_here} ranks share a GPU, which NCCL allows from 2.30 on; give each rank its own GPU, or "
            "omit topology='nccl'"
        )
    if os.environ.get(_SHARES_IF) != "1":
        raise CommunicatorError(f"{ranks_here} ranks share a GPU: set {_SHARES_IF}=1 to let NCCL work that way")
    room = multiprocessors // ranks_here
    forced = os.environ.get("NCCL_MAX_CTAS")
    if forced and int(forced) > room:
        raise CommunicatorError(
            f"{ranks_here} ranks share a GPU of {multiprocessors} multiprocessors, and NCCL_MAX_CTAS={forced} lets "
            f"each take more than its {room}"
        )
    return min(requested or room, room)

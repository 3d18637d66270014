"""User-defined reduction operators on GPU arrays: compiled by numba-cuda, linked with the executor by nvJitLink.

The extension carries the executor's kernels for each element type as LTO-IR with one function missing, `pc_operator`.
The user's function takes its place; the linker inlines it into the kernels. No GPU is needed before the result runs.
"""

from __future__ import annotations

import importlib
import threading
import weakref
from typing import Any

from pycollective.comm.arguments.operators import Op
from pycollective.comm.cuda import runtime
from pycollective.errors import CommunicatorError

_compiled: weakref.WeakKeyDictionary[Op, dict[tuple[str, tuple[int, int]], Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def compile_for_device(op: Op, dtype: str, team: Any) -> Any:
    """The operator compiled for an element type, for `_cuda.Team.plan`. Done once: it takes about two seconds.

    Args:
        team: `_cuda.Team`, on whose device it is loaded. Loading may wait for kernels, and a kernel may wait for a
            peer: so the team's calls in flight are completed first.

    Raises:
        TypeError: numba cannot compile the function for this type, or it does not return an element of it.
        CommunicatorError: tools are missing or incompatible; states which, and what to install.
    """
    native = runtime.load()
    major, minor = native.properties(team.device)["compute_capability"]
    key = dtype, (int(major), int(minor))
    with _lock:
        made = _compiled.setdefault(op, {})
        image = None if key in made else image_of(op, *key)
        operator, devices = made.get(key, (None, frozenset()))
        if team.device not in devices:
            team.wait()
            if operator is None:
                operator = native.load_custom(dtype, image)
            operator.load(team.device)
            made[key] = operator, devices | {team.device}
        return operator


def image_of(op: Op, dtype: str, capability: tuple[int, int]) -> bytes:
    """The executor's kernels with the operator in them: a cubin for GPUs of this compute capability.

    Raises:
        TypeError: as `Op.address`, or numba-cuda cannot compile the function.
        CommunicatorError: numba-cuda or nvJitLink is missing or incompatible.
    """
    native = importlib.import_module("pycollective._cuda")
    op.address(dtype)  # refuses a function that does not compile for CPUs, with the same error
    function = _ltoir(op, dtype, capability)
    return _link(op, native.custom_program(dtype), function, capability)


def _ltoir(op: Op, dtype: str, capability: tuple[int, int]) -> bytes:
    """The function as LTO-IR, with the C ABI."""
    try:
        import numba_cuda  # noqa: F401  # numba's built-in numba.cuda cannot emit LTO-IR
        from numba import cuda
        from numba.core.errors import NumbaError
        from numba.cuda import types
    except ImportError as error:
        raise _missing(op, "numba-cuda", error) from error
    element = types.boolean if dtype == "bool" else getattr(types, dtype)
    try:
        code, _ = cuda.compile(
            op.function,
            element(element, element),
            device=True,
            cc=capability,
            abi="c",
            abi_info={"abi_name": "pc_operator"},
            output="ltoir",
            forceinline=True,
        )
    except NumbaError as error:
        raise TypeError(f"operator {op.name} does not compile for {dtype} on GPUs: {error}") from None
    except Exception as error:  # loads NVVM, which may be missing in several ways
        raise _missing(op, "numba-cuda with NVVM", error) from error
    return bytes(code)


def _link(op: Op, program: bytes, function: bytes, capability: tuple[int, int]) -> bytes:
    """The two together, for one compute capability."""
    try:
        from cuda.bindings import nvjitlink

        version = nvjitlink.version()
    except Exception as error:
        raise _missing(op, "nvJitLink", error) from error
    # fma=0: as the CPU computes. A fused multiply-add rounds once where two operations round twice.
    options = [f"-arch=sm_{capability[0]}{capability[1]}", "-lto", "-fma=0", "-O3"]
    linker, log = None, ""
    try:
        linker = nvjitlink.create(len(options), options)
        nvjitlink.add_data(linker, nvjitlink.InputType.FATBIN, program, len(program), "pycollective")
        nvjitlink.add_data(linker, nvjitlink.InputType.LTOIR, function, len(function), op.name)
        nvjitlink.complete(linker)
        image = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, image)
    except nvjitlink.nvJitLinkError as error:
        if linker is not None:
            text = bytearray(nvjitlink.get_error_log_size(linker))
            nvjitlink.get_error_log(linker, text)
            log = text.decode(errors="replace").strip("\0 \n")
        raise CommunicatorError(
            f"operator {op.name}: nvJitLink {version[0]}.{version[1]} cannot link it with pycollective's kernels for "
            f"compute capability {capability[0]}.{capability[1]}; the linker must be of the same major CUDA version as "
            f"the nvcc that built pycollective, and not older: {str(error).strip()} {log}".strip()
        ) from error
    finally:
        if linker is not None:
            nvjitlink.destroy(linker)
    return bytes(image)


def _missing(op: Op, what: str, error: Exception) -> CommunicatorError:
    return CommunicatorError(
        f"operator {op.name}: a user-defined operator on GPU arrays needs {what}, which could not be used "
        f"({type(error).__name__}: {str(error).strip()}): pip install 'pycollective[cuda]' "
        "(where pycollective was built with CUDA 12: 'numba-cuda[cu12]')"
    )

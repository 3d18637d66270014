"""Arrays of any library, as the core takes them: NumPy as it is, everything else through DLPack, without a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pycollective import _core

_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


def readable(x: Any, what: str = "x") -> Any:
    """What the core can read of an input: the array itself where it can, a contiguous copy where it must.

    Args:
        x: NumPy array, a Python or NumPy scalar or sequence of numbers, or anything with __dlpack__ on the CPU.

    Returns:
        a C-contiguous numpy.ndarray, or a `_core.HostBuffer` over x's own memory.

    Raises:
        TypeError: no array, memory of another device, or an element type that no collective takes.
    """
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else np.ascontiguousarray(x)
    if isinstance(x, _core.HostBuffer):
        return x
    if hasattr(x, "__dlpack__"):
        try:
            return _core.HostBuffer(x)
        except ValueError as error:
            if "contiguous" not in str(error):
                raise
            return _core.HostBuffer(_contiguous(x))  # only read, so a copy does no harm
    array = np.asarray(x)
    if _core.dtype_name(array.dtype) is None:
        raise TypeError(f"{what} is no array: {type(x).__name__}")
    return np.ascontiguousarray(array) if array.ndim else array


def writable(out: Any, what: str = "out") -> Any:
    """What the core can write of an output: always its own memory, never a copy.

    Raises:
        TypeError: no array, or memory of another device.
        ValueError: read-only or not C-contiguous; a copy would be written and lost.
    """
    if isinstance(out, np.ndarray):
        buffer: Any = out
        contiguous, may_write = out.flags.c_contiguous, out.flags.writeable
    elif isinstance(out, _core.HostBuffer) or hasattr(out, "__dlpack__"):
        buffer = out if isinstance(out, _core.HostBuffer) else _core.HostBuffer(out)
        contiguous, may_write = True, buffer.writable
    else:
        raise TypeError(f"{what} is no array: {type(out).__name__}")
    if not contiguous:
        raise ValueError(f"{what} is not C-contiguous (strides {out.strides}): pass a contiguous array")
    if not may_write:
        raise ValueError(f"{what} is read-only")
    return buffer


def on_device(x: Any) -> bool:
    """Whether an array says that it is in the memory of a CUDA device. Host arrays are told apart at once."""
    if x is None or isinstance(x, (np.ndarray, _core.HostBuffer)):
        return False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return bool(x.is_cuda)
    if hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__dlpack_device__") and int(x.__dlpack_device__()[0]) in _CUDA_DEVICES


def message(x: Any) -> Any:
    """What the core can read of a message: of an array in GPU memory a copy."""
    if on_device(x):
        from pycollective.comm.cuda.calls import host_copy

        return host_copy(x)
    return readable(x)


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of any array or number."""
    shape = getattr(x, "shape", None)
    return tuple(np.shape(x)) if shape is None else tuple(int(extent) for extent in shape)


def new_like(x: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised array of x's library and type.

    Immutable libraries (JAX) get a NumPy array, which they take through DLPack.
    """
    if isinstance(x, np.ndarray):
        return np.empty(shape, x.dtype)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return torch.empty(shape, dtype=x.dtype)
    namespace = getattr(x, "__array_namespace__", None)
    if namespace is not None:
        made = namespace().empty(shape, dtype=x.dtype)
        if not hasattr(made, "__dlpack__") or _core.HostBuffer(made).writable:
            return made
    if hasattr(x, "__dlpack__"):
        return np.empty(shape, numpy_dtype(_core.HostBuffer(x).dtype))
    return np.empty(shape, np.asarray(x).dtype)


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """A numpy.dtype from anything that names one: also "bfloat16", "float8_e4m3fn", "float8_e5m2" and torch's types.

    Raises:
        TypeError: no element type that a collective takes.
    """
    name = str(dtype).removeprefix("torch.")
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small
    found: np.dtype[Any] = np.dtype(name if type(dtype).__module__ == "torch" else dtype)
    if _core.dtype_name(found) is None:
        raise TypeError(f"no collective takes element type {found}")
    return found


def _contiguous(x: Any) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.contiguous()
    return x.__array_namespace__().reshape(x, (-1,), copy=True)  # in C order; only the elements are read

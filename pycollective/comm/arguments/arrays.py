"""Arrays of any library, as the core takes them: NumPy as it is, everything else through DLPack, without a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from pycollective import _core, checks
from pycollective.dtypes import DTYPES

_CUDA_DEVICES = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged
_PLAIN = (np.ndarray, np.memmap)
"""Types of NumPy arrays that mean nothing but their elements."""


def strided(x: Any, what: str = "x") -> Any:
    """An input as it is, whatever its strides. Nothing is read of it: an earlier call may still write to it.

    Args:
        x: NumPy array, a Python or NumPy scalar or sequence of numbers, or anything with __dlpack__ on the CPU.

    Returns:
        a numpy.ndarray, or a `_core.HostBuffer` over x's own memory.

    Raises:
        TypeError: no array, a subclass of numpy.ndarray (see `plain`), memory of another device, or an element type
            that no collective takes.
    """
    if type(x) is np.ndarray:
        return x
    x = admitted(x, what)
    if isinstance(x, (np.ndarray, _core.HostBuffer)):
        return x
    if hasattr(x, "__dlpack__"):
        return _buffer(x, what, True)
    array = _converted(x, what)
    if _core.dtype_name(array.dtype) is None:
        raise TypeError(f"{what} is no array that a collective takes: {checks.shown(x)}")
    return array


def readable(x: Any, what: str = "x") -> Any:
    """What the core can read of an input at once: the array itself where it can, a contiguous copy where it must.

    Args, Raises: as for `strided`.

    Returns:
        a C-contiguous numpy.ndarray, or a `_core.HostBuffer` over x's own memory.
    """
    found = strided(x, what)
    if isinstance(found, _core.HostBuffer):
        return found if found.contiguous else np.ascontiguousarray(found.array(numpy_dtype(found.dtype)))
    return found if found.flags.c_contiguous else np.ascontiguousarray(found)


def admitted(x: Any, what: str) -> Any:
    """An input in a form that means nothing but its elements.

    Raises:
        TypeError: a subclass of numpy.ndarray, see `plain`.
    """
    if isinstance(x, np.generic):  # a scalar; those of ml_dtypes offer a DLPack export that fails
        return np.asarray(x)
    if isinstance(x, np.ndarray):
        return plain(x, what)
    return x.resolve_neg() if negated(x) else x


def plain(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """The array as an ndarray over the same memory.

    Raises:
        TypeError: a subclass with a meaning that a collective would lose without a word: the mask of a masked array,
            the unit of a quantity, the products of a numpy.matrix.
    """
    if type(array) not in _PLAIN:
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        hint = "its mask would be lost; " if isinstance(array, np.ma.MaskedArray) else ""
        raise TypeError(
            f"{what} is a {kind}, a subclass of numpy.ndarray: {hint}pass numpy.asarray({what}) for its elements alone"
        )
    return np.asarray(array)


def writable(out: Any, what: str = "out") -> Any:
    """What the core can write of an output: always its own memory, never a copy.

    Raises:
        TypeError: no array, a subclass of numpy.ndarray (see `plain`), or memory of another device.
        ValueError: read-only, not C-contiguous (a copy would be written and lost), or a negated view of torch's.
    """
    if isinstance(out, np.ndarray):
        buffer: Any = out if type(out) is np.ndarray else plain(out, what)
        contiguous, may_write = out.flags.c_contiguous, out.flags.writeable
    elif isinstance(out, _core.HostBuffer) or hasattr(out, "__dlpack__"):
        if negated(out):
            raise ValueError(f"{what} is a tensor that shows the negative of its memory: pass {what}.resolve_neg()")
        buffer = out if isinstance(out, _core.HostBuffer) else _buffer(out, what, False)
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
    if x is None or isinstance(x, (np.ndarray, np.generic, _core.HostBuffer)):
        return False
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return bool(x.is_cuda)
    if hasattr(x, "__cuda_array_interface__"):
        return True
    if not hasattr(x, "__dlpack_device__"):
        return hasattr(x, "__dlpack__") and _layout(x)[0] in _CUDA_DEVICES
    device = x.__dlpack_device__()
    try:
        return int(device[0]) in _CUDA_DEVICES
    except Exception:
        raise TypeError(
            f"__dlpack_device__ of {checks.shown(x)} must return (type, number), not {checks.shown(device)}"
        ) from None


def negated(x: Any) -> bool:
    """Whether a tensor shows the negative of what its memory holds, as torch.imag of a conjugate: DLPack hides it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor) and bool(x.is_neg())


def _converted(x: Any, what: str) -> np.ndarray[Any, Any]:
    """What NumPy makes of anything that is no array of a library that is known here.

    Raises:
        TypeError: it refuses, in words that do not name the argument.
    """
    try:
        return np.asarray(x)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{what} is no array: {checks.shown(x)}: {error}") from error


def _layout(x: Any) -> tuple[int, tuple[int, ...]]:
    """The DLPack type of the device and the shape of an array that may have nothing but __dlpack__."""
    try:
        found: tuple[int, tuple[int, ...]] = _core.dlpack_layout(x)
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{checks.shown(x)}: {error}") from error
    return found


def _buffer(x: Any, what: str, strided: bool) -> Any:
    """x's own memory, by DLPack; an error of ours names the argument, one of x's library is its own."""
    try:
        return _core.HostBuffer(x, strided)
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"{what} ({checks.shown(x)}): {error}") from error


def shape_of(x: Any) -> tuple[int, ...]:
    """The shape of any array or number."""
    if type(x) is np.ndarray:
        known: tuple[int, ...] = x.shape
        return known
    shape = getattr(x, "shape", None)
    if shape is None and hasattr(x, "__dlpack__"):
        return _layout(x)[1]
    if shape is None:
        converted: tuple[int, ...] = _converted(x, "x").shape
        return converted
    try:
        return tuple(int(extent) for extent in shape)
    except Exception:
        checks.refuse_type(f"the shape of {type(x).__name__}", "a sequence of integers", shape)


def new_like(x: Any, shape: tuple[int, ...]) -> Any:
    """An uninitialised array of x's library and type.

    Immutable libraries (JAX) get a NumPy array, which they take through DLPack.
    """
    if isinstance(x, (np.ndarray, np.generic)):
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
        return np.empty(shape, numpy_dtype(_buffer(x, "x", True).dtype))
    return np.empty(shape, np.asarray(x).dtype)


def clear(x: Any) -> None:
    """Fill an array that `new_like` has made with zeros: with bytes of 0 where the type has no zero."""
    if isinstance(x, np.ndarray):
        x.reshape(-1).view(np.uint8)[:] = 0
    else:
        x[...] = 0


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """A numpy.dtype from anything that names one: also "bfloat16", the 8-bit floats of ml_dtypes and torch's types.

    Raises:
        TypeError: no element type that a collective takes.
    """
    name = str(dtype).removeprefix("torch.")
    if name in DTYPES and DTYPES[name].extended:
        import ml_dtypes

        small: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return small
    try:
        found: np.dtype[Any] = np.dtype(name if type(dtype).__module__ == "torch" else dtype)
    except Exception:
        checks.refuse_type("dtype", "an element type", dtype)
    if _core.dtype_name(found) is None:
        raise TypeError(f"dtype: no collective takes element type {found}")
    return found

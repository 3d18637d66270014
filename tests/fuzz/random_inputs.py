"""Random arguments for public functions: plausible, wrong and hostile ones, by the parameter's name."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

INTEGERS = (
    0, 1, -1, 2, 3, 7, 64, 1 << 31, -(1 << 31), 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 64, -(1 << 70),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e308, float("inf"), -float("inf"), float("nan"))
STRINGS = (
    "", "x", "sum", "avg", "min", "band", "ring", "direct", "tree", "wheel(hub=1)", "wheel(hub=", "wheel(hub=1.5)",
    "nccl", "float32", "\0", "é" * 100, "x" * 5000, "\ud800", "cuda", "cuda:-1", "allreduce", "8B", "-1K",
)  # fmt: skip
WAITS = (0.0, 0.01, -1.0, float("nan"), "x", ())
"""For a timeout: none that makes the test wait."""
DTYPES = ("f4", "f4", "f4", "f8", "i4", "i8", "u1", "?", "f2", "c8", "O", "S4", "V3", ">f4", "M8[s]", "i4,f8")

_NEW_CAPSULE = ctypes.pythonapi.PyCapsule_New
_NEW_CAPSULE.restype = ctypes.py_object
_NEW_CAPSULE.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_ROOM = ctypes.create_string_buffer(256)
_NAMES = (b"dltensor", b"used_dltensor", b"dltensor_versioned", b"nothing", b"")


class Foreign:
    """An array library that returns wrong values."""

    shape, dtype, nbytes, strides = (4,), np.dtype("f4"), 16, None

    def __init__(self, answer: Any, device: Any = (1, 0)) -> None:
        self.answer, self.device = answer, device

    def __dlpack__(self, **_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer

    def __dlpack_device__(self) -> Any:
        return self.device


class Described:
    """An array with only NumPy's or CUDA's array interface."""

    def __init__(self, name: str, interface: Any) -> None:
        setattr(self, name, interface)

    def __repr__(self) -> str:
        return f"Described({vars(self)!r})"


class Awkward:
    """Raises in every operation: str, bool, comparisons, len, conversions."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("an awkward object")

    __repr__ = __bool__ = __eq__ = __len__ = __index__ = __float__ = __iter__ = __hash__ = _fail


class DLTensor(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("number", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )  # fmt: skip


class Picker:
    """Picks by a seed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def one(self, of: Any) -> Any:
        return self.rng.choice(list(of)) if of else None


class Inputs(Picker):
    """Picks arguments: mostly of the parameter's kind, by its name, else anything."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self.memory: list[Any] = []  # memory of foreign arrays
        self.special: dict[str, Callable[[], Any]] = {}
        """Special arguments of a surface: parameter's name -> the function that picks its arguments."""

    def array(self) -> Any:
        dtype = np.dtype(self.one(DTYPES))
        shape = self.one(((), (0,), (1,), (4,), (4,), (2, 3), (1, 0, 5), (1200,), (1,) * 30))
        made: Any = np.zeros(shape, dtype)
        if dtype.kind in "fiuc":  # so that overwrites are visible
            made[...] = np.arange(made.size, dtype=np.uint8).reshape(shape) % 100 + 1
        if self.chance(0.1):
            made.flags.writeable = False
        if made.ndim and self.chance(0.1):
            made = made[:: self.one((2, -1))]
        if self.chance(0.1):
            made = np.broadcast_to(made, (3, *made.shape))
        if self.chance(0.05) and dtype.kind in "fiu":
            made = np.ma.masked_array(made)
        return made

    def tensor(self) -> Any:
        import torch

        names = ("float32", "float32", "bfloat16", "int64", "bool", "complex64", "uint8")
        dtype = getattr(torch, self.one(names))
        made = torch.ones(self.one(((), (0,), (4,), (4,), (2, 3), (1200,))), dtype=dtype)
        if self.chance(0.1) and dtype.is_floating_point:
            made.requires_grad_(True)
        if self.chance(0.1) and made.ndim == 2:
            made = made.t()
        if self.chance(0.05):
            made = made.to("meta") if self.chance(0.5) else torch.nn.Parameter(torch.ones(3))
        if self.chance(0.05):
            made = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (3,))
        return made

    def capsule(self) -> Any:
        """A capsule whose name or content is wrong, but whose pointers can be read."""
        if self.chance(0.3):
            return _NEW_CAPSULE(ctypes.addressof(_ROOM), self.one(_NAMES[1:]), None)
        data = ctypes.create_string_buffer(64)
        ndim = self.one((0, 1, 1, 1, 2, -1, 70))
        shape = (ctypes.c_int64 * 80)(*(self.one((0, 1, 4, 4, 4, -1, 1 << 40, 1 << 62)) for _ in range(80)))
        strides = (ctypes.c_int64 * 80)(*(self.one((1, 1, 0, -1, 4, 1 << 62)) for _ in range(80)))
        held = DLTensor(
            ctypes.addressof(data), self.one((1, 1, 1, 2, 13, 0, 99)), self.one((0, 0, -1, 99)), ndim,
            self.one((2, 2, 0, 1, 4, 9, 255)), self.one((32, 32, 8, 64, 0, 7, 255)), self.one((1, 1, 1, 4, 0)),
            ctypes.addressof(shape), self.one((None, ctypes.addressof(strides))), self.one((0, 0, 4)), None, None,
        )  # fmt: skip
        huge = any(abs(extent) > 4 for extent in shape[: max(ndim, 0)]) or ndim > 2
        if self.chance(0.2) or huge:  # else a count beyond any memory would be read, which cannot be detected
            held.data = None
        self.memory += [data, shape, strides, held]
        return _NEW_CAPSULE(ctypes.addressof(held), b"dltensor", None)

    def interface(self) -> Any:
        pointer = (self.one((0, 0, None, "x", -1, 1 << 70)), self.one((True, False)))
        made = {
            "shape": self.one(((4,), (0,), (-1,), (1 << 62, 4), "x", None)), "version": self.one((3, 0, "x")),
            "strides": self.one((None, (-4,), (0,), "x")), "typestr": self.one(("<f4", "|O", "x", 3)),
            "data": self.one((pointer, None, ())),
        }  # fmt: skip
        if self.chance(0.3):
            del made[self.one(made)]
        return self.one((made, made, made, None, 3))

    def foreign(self) -> Any:
        kind = self.rng.randrange(6)
        if kind < 2:
            answer = self.one((None, 3, ValueError("no"), BufferError("no"), KeyError("no"), self.capsule))
            return Foreign(answer, self.one(((1, 0), (1, 0), (2, 0), None, ("x",), (), (99, -1))))
        if kind == 2:
            return Foreign(self.capsule)
        name = "__array_interface__" if kind < 5 else "__cuda_array_interface__"
        return Described(name, self.interface())

    def junk(self) -> Any:
        return self.one((
            None, (), [], {}, object(), b"x", range(3), int, lambda *_: None, 1j, True, slice(0), [1.0, 2.0], {"a": 1},
            {1: 2}, Awkward(), 10**5000, [[]], np.float32(0.5), np.int8(3), np.datetime64(0, "s"),
            timedelta(seconds=-1), {3},
        ))  # fmt: skip

    def anything(self) -> Any:
        values = self.one((INTEGERS, FLOATS, STRINGS))
        return self.one((*[lambda: self.one(values)] * 3, self.array, self.junk, self.junk, self.foreign))()

    def of(self, name: str, hint: str) -> Any:
        if name in ("timeout", "timeout_s"):
            return self.one(WAITS)
        if self.chance(0.25):
            return self.anything()
        if name in self.special:
            return self.special[name]()
        data = self.tensor if "tensor" in hint.lower() or "tensor" in name else self.array
        by_name: dict[str, Callable[[], Any]] = {
            "x": data, "tensor": self.tensor, "tensors": lambda: [self.tensor() for _ in range(self.one((0, 1, 2)))],
            "out": data, "op": lambda: self.one(("sum", "avg", "min", "bor", "nope", 3)),
            "topology": lambda: self.one((None, *STRINGS)), "root": lambda: self.one((0, 0, *INTEGERS)),
            "counts": lambda: self.one((None, [1], [2, 2], [1 << 62] * 4, [-1], [0.5], "ab")),
            "color": lambda: self.one((None, 0, 1, -1)),
            "ranks": lambda: self.one(([0], [0, 1], [0, 0], [5], [], 3, None)),
            "shape": lambda: self.one((0, 3, (2, 2), -1, (1 << 62, 4), (1 << 40,), "x", (0.5,))),
            "dtype": lambda: self.one(("f4", "nope", None, "O", np.float64, 3, "bfloat16")),
            "name": lambda: self.one((None, "a", "a", "b", "", 3)), "nbytes": lambda: self.one(INTEGERS),
            "collective": lambda: self.one(("allreduce", "broadcast", "nope", 3, None)),
            "path": lambda: self.one(("a", "", "a/b", ".", "\0", 3)),
        }  # fmt: skip
        if name in by_name:
            return by_name[name]()
        if hint.startswith("int") and self.chance(0.8):
            return self.one(INTEGERS[:8])
        return self.one((1, 0.5)) if hint.startswith("float") and self.chance(0.6) else self.anything()


def content(array: Any) -> bytes | None:
    """An array's content; None if it cannot be read."""
    if isinstance(array, np.ndarray) and not array.dtype.hasobject:
        return array.tobytes()
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return None
    if array.layout != torch.strided or array.device.type != "cpu":
        return None
    return bytes(array.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())

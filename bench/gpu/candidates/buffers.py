"""Inputs and outputs of n virtual ranks: random, several sets so that they leave the cache, poisoned, checked."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pycollective.comm.arguments.arrays import numpy_dtype

from ..clock import Clock

MOST_SETS = 64
_SHIFT = 4099
"""Offset in elements between two ranks' views of the random numbers: a prime, so that no two alignments are equal."""
_WHOLE = 64 << 20
"""Bytes of outputs that the host checks completely; larger ones are checked by torch, or without it at their ends."""
_END = 1 << 18  # elements
Host = NDArray[Any]


@functools.cache
def numbers(dtype: str, count: int) -> Host:
    """Random numbers between -0.5 and 0.5; different ones for each count."""
    drawn = np.random.default_rng(count).random(count, dtype=np.float32) - np.float32(0.5)
    return drawn.astype(numpy_dtype(dtype))


class Buffers:
    """Device memory for calls of n ranks.

    Args:
        ranks, dtype, nbytes: of each rank's input and output.
        l2_bytes: of the device; enough sets for three times that size, at most MOST_SETS and at least 2.

    Attributes:
        sets: number of sets.
        inputs, outputs: DeviceArrays by set and rank.
    """

    def __init__(self, clock: Clock, ranks: int, dtype: str, nbytes: int, l2_bytes: int) -> None:
        self._clock, self.ranks, self.dtype = clock, ranks, dtype
        self.nbytes = nbytes
        self.count = nbytes // numpy_dtype(dtype).itemsize
        self.sets = max(2, min(MOST_SETS, -(-3 * l2_bytes // max(1, 2 * ranks * nbytes))))
        self._stride = -(-nbytes // 512) * 512
        self.memory = clock.cuda.allocate_plain(clock.device, (2 * self.sets * ranks + 1) * self._stride)
        self._poison = self._array(2 * self.sets, 0)
        self.inputs = [[self._array(2 * s, r) for r in range(ranks)] for s in range(self.sets)]
        self.outputs = [[self._array(2 * s + 1, r) for r in range(ranks)] for s in range(self.sets)]
        self._host = numbers(dtype, self.count + ranks * _SHIFT)
        self._fill()

    def _array(self, block: int, rank: int) -> Any:
        address = self.memory.address + (block * self.ranks + rank) * self._stride
        return self._clock.cuda.DeviceArray(self.memory, address, [self.count], self.dtype, self._clock.device)

    def _fill(self) -> None:
        for rank in range(self.ranks):
            self.inputs[0][rank].copy_from_host(_raw(self._of(rank)), self._clock.stream)
            for other in self.inputs[1:]:
                self._copy(other[rank], self.inputs[0][rank])
        bad = np.full(self.count, np.nan, numpy_dtype(self.dtype))
        self._poison.copy_from_host(_raw(bad), self._clock.stream)
        self._clock.synchronize()

    def _copy(self, into: Any, source: Any) -> None:
        self._clock.cuda.copy(into.address, source.address, self.nbytes, self._clock.stream, self._clock.device)

    def _of(self, rank: int) -> Host:
        """The input of a rank."""
        return self._host[rank * _SHIFT : rank * _SHIFT + self.count]

    def poison(self) -> None:
        """Fill the outputs of the first set with values that no correct result has."""
        for rank in range(self.ranks):
            self._copy(self.outputs[0][rank], self._poison)

    def wrong(self, collective: str, exact: bool) -> int:
        """Number of wrong elements in the first set's outputs.

        Args:
            exact: expect the result of reducing in rank order, bitwise; else within the rounding of other orders.
        """
        self._clock.synchronize()
        # A broadcast is in place at its root.
        results = [self.inputs[0][0], *self.outputs[0][1:]] if collective == "broadcast" else self.outputs[0]
        if self.ranks * self.nbytes > _WHOLE and why_no_torch() is None:
            return differ(self.inputs[0], results, collective, 0.0 if exact else self._tolerance())
        found = 0
        for rank, begin, end in self._spans():
            got = np.empty(end - begin, numpy_dtype(self.dtype))
            array = results[rank]
            item = got.itemsize
            part = self._clock.cuda.DeviceArray(
                self.memory, array.address + begin * item, [end - begin], self.dtype, self._clock.device
            )
            part.copy_to_host(_raw(got), self._clock.stream)
            found += _differ(got, self._right(collective)[begin:end], 0.0 if exact else self._tolerance())
        return found

    def _tolerance(self) -> float:
        """The rounding of another order: each partial sum is at most ranks/2, and is rounded at every hop."""
        unit = 2.0**-24 if self.dtype == "float32" else 2.0**-9
        return 2 * unit * self.ranks * self.ranks

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        for rank in range(self.ranks):
            if self.ranks * self.nbytes <= _WHOLE:
                yield rank, 0, self.count
            else:
                yield rank, 0, min(_END, self.count)
                yield rank, max(0, self.count - _END), self.count

    def _right(self, collective: str) -> Host:
        return self._of(0) if collective == "broadcast" else _sum_in_rank_order(self.dtype, self.count, self.ranks)


@functools.lru_cache(maxsize=2)
def _sum_in_rank_order(dtype: str, count: int, ranks: int) -> Host:
    """Sum in float32, rounded once: the result of `direct`."""
    host = numbers(dtype, count + ranks * _SHIFT)
    total = host[:count].astype(np.float32)
    for rank in range(1, ranks):
        total += host[rank * _SHIFT : rank * _SHIFT + count]
    return total.astype(host.dtype)


def _raw(array: Host) -> Host:
    """The bytes: NumPy has no buffer protocol for bfloat16."""
    return np.ascontiguousarray(array).view(np.uint8)


def _differ(got: Host, right: Host, tolerance: float) -> int:
    if tolerance == 0:
        size = got.itemsize
        return int(np.count_nonzero(got.view(f"u{size}") != right.view(f"u{size}")))
    near = np.abs(got.astype(np.float32) - right.astype(np.float32)) <= tolerance
    return int(got.size - np.count_nonzero(near))


@functools.cache
def why_no_torch() -> str | None:
    """Why torch cannot be measured here; None if it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return None if torch.cuda.is_available() else "this torch cannot use the GPU"


def differ(inputs: Sequence[Any], results: Sequence[Any], collective: str, tolerance: float) -> int:
    """Elements of all results that differ from the expected ones, by more than `tolerance` or, if 0, in any bit."""
    import torch

    tensors: list[Any] = [torch.from_dlpack(x) for x in inputs]
    total = tensors[0].float()
    if collective != "broadcast":
        total = total.clone()
        for x in tensors[1:]:
            total += x  # in rank order, in float32, rounded once below
    right = total.to(tensors[0].dtype)
    found = 0
    for result in results:
        got: Any = torch.from_dlpack(result)
        if tolerance == 0:
            bits = torch.int32 if got.element_size() == 4 else torch.int16
            found += int((got.view(bits) != right.view(bits)).sum())
        else:
            found += int(((got.float() - right.float()).abs() <= tolerance).logical_not().sum())
    torch.cuda.synchronize()
    return found

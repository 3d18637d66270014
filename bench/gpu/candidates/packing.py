"""Filling and emptying a fusion buffer: the engine's copy kernel against a copy for each tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...engine.shapes import Shape
from ..clock import Candidate, Clock

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ALIGNMENT = 16
_POISON = 0xA5


class Packing:
    """Separate tensors of float32, a buffer, and memory to unpack them to.

    Args:
        shapes: of the tensors.

    Attributes:
        nbytes: of all tensors.
        candidates: each packs and unpacks all tensors.
    """

    def __init__(self, clock: Clock, shapes: Sequence[Shape]) -> None:
        self._clock = clock
        self._sizes = [4 * math.prod(shape) for shape in shapes]
        self.nbytes = sum(self._sizes)
        padded = [-(-nbytes // _ALIGNMENT) * _ALIGNMENT for nbytes in self._sizes]
        self._begins = [end - size for end, size in zip(itertools.accumulate(padded), padded, strict=True)]
        self._room = sum(padded)
        self._memory = [clock.cuda.allocate_plain(clock.device, self._room) for _ in range(3)]
        self._host = np.random.default_rng(1).integers(0, 255, self._room, np.uint8)
        self._array(0).copy_from_host(self._host, clock.stream)
        tensors, buffer, back = (memory.address for memory in self._memory)
        # In the buffer they have another order, like gradients that become ready from the last layer on.
        places = [self._room - begin - size for begin, size in zip(self._begins, padded, strict=True)]
        rows = list(zip(places, self._begins, self._sizes, strict=True))
        pack = [(buffer + place, tensors + begin, nbytes) for place, begin, nbytes in rows]
        unpack = [(back + begin, buffer + place, nbytes) for place, begin, nbytes in rows]

        def move(_: int) -> None:
            for moves in (pack, unpack):
                clock.cuda.move(clock.device, moves, clock.stream)

        def copy(_: int) -> None:
            for to, source, nbytes in itertools.chain(pack, unpack):
                clock.cuda.copy(to, source, nbytes, clock.stream, clock.device)

        self.candidates = [Candidate("copy kernel", move), Candidate(f"{len(shapes)} copies", copy)]

    def _array(self, number: int) -> Any:
        memory = self._memory[number]
        return self._clock.cuda.DeviceArray(memory, memory.address, [self._room], "uint8", self._clock.device)

    def poison(self) -> None:
        """Fill the unpacked tensors with values that they do not have."""
        for number in (1, 2):
            self._array(number).copy_from_host(np.full(self._room, _POISON, np.uint8), self._clock.stream)

    def wrong(self) -> int:
        """Bytes of the tensors that were not restored."""
        self._clock.synchronize()
        got: NDArray[Any] = np.empty(self._room, np.uint8)
        self._array(2).copy_to_host(got, self._clock.stream)
        spans = [slice(begin, begin + size) for begin, size in zip(self._begins, self._sizes, strict=True)]
        return sum(int(np.count_nonzero(got[span] != self._host[span])) for span in spans)

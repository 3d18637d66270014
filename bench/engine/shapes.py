"""The tensors that are reduced: their shapes, by formula, and DistributedDataParallel's division into buckets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

__all__ = ["Shape", "ddp_buckets", "resnet50", "vectors"]

Shape = tuple[int, ...]

_BLOCKS = (3, 4, 6, 3)
_EXPANSION = 4
_FIRST_BUCKET, _BUCKET = 1 << 20, 25 << 20  # bytes; torch.nn.parallel.DistributedDataParallel's defaults


def resnet50() -> list[Shape]:
    """The parameters of ResNet-50 in the order of the forward pass: 161 tensors, 25 557 032 elements.

    He and others, "Deep Residual Learning for Image Recognition" (2015), table 1: bottleneck blocks of a 1x1, a 3x3 and
    a 1x1 convolution, each followed by a batch normalization of two vectors, none with a bias.
    """
    shapes = [*_convolution(64, 3, 7)]
    arriving = 64
    for stage, blocks in enumerate(_BLOCKS):
        width = 64 << stage
        for block in range(blocks):
            shapes += _bottleneck(arriving, width, shortcut=block == 0)
            arriving = width * _EXPANSION
    return [*shapes, (1000, arriving), (1000,)]


def _bottleneck(arriving: int, width: int, shortcut: bool) -> Iterator[Shape]:
    leaving = width * _EXPANSION
    yield from _convolution(width, arriving, 1)
    yield from _convolution(width, width, 3)
    yield from _convolution(leaving, width, 1)
    if shortcut:  # if the number of channels changes, the sum needs a projection
        yield from _convolution(leaving, arriving, 1)


def _convolution(leaving: int, arriving: int, side: int) -> Iterator[Shape]:
    yield leaving, arriving, side, side
    yield (leaving,)
    yield (leaving,)


def vectors(count: int, nbytes: int) -> list[Shape]:
    """A number of float32 vectors of the same size in bytes."""
    return [(nbytes // 4,)] * count


def ddp_buckets(shapes: Sequence[Shape], itemsize: int = 4) -> list[list[int]]:
    """Indices into ``shapes``, a list for each bucket, as in DistributedDataParallel after its first step.

    Tensors in the order in which backward finishes them, the reverse of the forward pass; a bucket is closed by the
    tensor that fills it: the first at 1 MiB, so that communication starts early, the others at 25.
    """
    buckets: list[list[int]] = [[]]
    held = 0
    for index in reversed(range(len(shapes))):
        buckets[-1].append(index)
        held += prod(shapes[index]) * itemsize
        if held >= (_FIRST_BUCKET if len(buckets) == 1 else _BUCKET):
            buckets.append([])
            held = 0
    return buckets if buckets[-1] else buckets[:-1]

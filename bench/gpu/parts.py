"""The parts of the measurement. Those that may hang run in their own process, without affecting the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pycollective.comm.cuda.virtual import VirtualWorld
from pycollective.comm.host.segments import setting

from ..engine.shapes import Shape, resnet50, vectors
from ..workload.cases import format_size
from . import bits
from .candidates import nccl, torch_sum
from .candidates.buffers import Buffers, why_no_torch
from .candidates.calls import Ours
from .candidates.packing import Packing
from .clock import Candidate, Clock, copy_ceiling
from .rows import Check, Row

TOPOLOGIES = ("direct", "ring", "tree", "wheel")
COLLECTIVES = ("allreduce", "broadcast")


@dataclass(frozen=True)
class Scale:
    """Sizes to measure, in bytes per rank."""

    sweep: tuple[int, ...] = tuple(1 << power for power in (10, 13, 16, 19, 22, 25, 28))
    against: tuple[int, ...] = (1 << 13, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
    tuned: tuple[int, ...] = (1 << 20, 1 << 24, 1 << 28)
    small: tuple[int, ...] = (8, 64, 512, 1 << 10, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16)
    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    rounds: int = 9
    ceiling_bytes: int = 1 << 30
    tensors: Sequence[Shape] = tuple(resnet50())


TINY = Scale((1 << 10, 1 << 14), (1 << 13,), (1 << 18,), (8, 1 << 10), ("bfloat16",), 3, 1 << 20, vectors(161, 1024))
"""For trying the bench itself."""


class Bench:
    """One process's measurements for n ranks.

    Args:
        emit: receives each row and each check immediately.
    """

    def __init__(self, ranks: int, scale: Scale, emit: Callable[[Row | Check], None]) -> None:
        self.ranks, self.scale, self.emit = ranks, scale, emit
        self.clock = Clock()
        self.l2_bytes = int(self.clock.cuda.properties(0)["l2_bytes"])
        self.world = VirtualWorld(ranks)
        self.ceiling = copy_ceiling(self.clock, scale.ceiling_bytes)
        self._ours: dict[str, Ours] = {}

    def buffers(self, dtype: str, nbytes: int) -> Buffers:
        return Buffers(self.clock, self.ranks, dtype, nbytes, self.l2_bytes)

    def compare(
        self, part: str, buffers: Buffers, collective: str, ours: Sequence[Ours], others: Sequence[Candidate] = ()
    ) -> None:
        """Check each candidate on poisoned outputs, time them in turns, check their graphs' outputs; a row each."""
        by_name = self._ours = {mine.candidate.name: mine for mine in ours}
        candidates = [*(mine.candidate for mine in ours), *others]
        first = functools.partial(self._wrong, buffers=buffers, collective=collective, ours=by_name)
        wrong = [first(candidate, lambda c=candidate: c.call(0)) for candidate in candidates]  # type: ignore[misc]
        timings = self.clock.compare(candidates, self.scale.rounds, buffers.sets)
        for candidate, timing, before in zip(candidates, timings, wrong, strict=True):
            mine = by_name.get(candidate.name)
            row = Row(
                part, candidate.name, collective, buffers.dtype, self.ranks, buffers.nbytes, timing.seconds,
                timing.rounds, timing.calls, buffers.sets, before + first(candidate, timing.launch),
            )  # fmt: skip
            if mine:
                path = "low-latency" if mine.plan.low_latency else "schedule"
                row = self.counted(replace(row, path=path, channels=mine.channels), mine.least_bytes(buffers.nbytes))
            self.emit(row)

    def counted(self, row: Row, least_bytes: int) -> Row:
        """The row with the bytes that its algorithm must move."""
        return replace(row, least_bytes=least_bytes, of_ceiling=least_bytes / row.seconds / self.ceiling)

    def _wrong(
        self, candidate: Candidate, launch: Callable[[], None], buffers: Buffers, collective: str, ours: dict[str, Ours]
    ) -> int:
        """Wrong elements after a launch on poisoned outputs."""
        self.clock.now = candidate.name
        buffers.poison()
        launch()
        wrong = buffers.wrong(collective, exact=collective == "broadcast" or candidate.name.startswith("direct"))
        if candidate.name in ours and (fault := ours[candidate.name].fault()) is not None:
            raise RuntimeError(fault)
        return wrong

    def fault(self) -> str | None:
        """What a kernel of the candidate that was being timed has recorded; None without an error."""
        mine = self._ours.get(self.clock.now)
        return mine.fault() if mine else None

    def ours(self, buffers: Buffers, collective: str, topologies: Sequence[str] = ("direct",)) -> list[Ours]:
        return [Ours(self.world, self.clock, buffers, collective, topology) for topology in topologies]


def sweep(bench: Bench) -> None:
    """Every topology against the copy ceiling; largest buffers first, while memory is available."""
    for nbytes in sorted(bench.scale.sweep, reverse=True):
        for dtype in bench.scale.dtypes:
            buffers = bench.buffers(dtype, nbytes)
            for collective in COLLECTIVES:
                bench.compare("sweep", buffers, collective, bench.ours(buffers, collective, TOPOLOGIES))


def small(bench: Bench) -> None:
    """Small messages in a graph."""
    for nbytes in bench.scale.small:
        buffers = bench.buffers("float32", nbytes)
        for collective in COLLECTIVES:
            bench.compare("small", buffers, collective, bench.ours(buffers, collective))


def copies(bench: Bench) -> None:
    """Broadcast against equivalent copies."""
    for nbytes in bench.scale.against:
        buffers = bench.buffers("float32", nbytes)

        def call(i: int, buffers: Buffers = buffers) -> None:
            source = buffers.inputs[i % buffers.sets][0]
            for out in buffers.outputs[i % buffers.sets][1:]:
                bench.clock.cuda.copy(out.address, source.address, buffers.nbytes, bench.clock.stream, 0)

        others = [Candidate(f"{bench.ranks - 1} copies", call)]
        bench.compare("copies", buffers, "broadcast", bench.ours(buffers, "broadcast", TOPOLOGIES), others)


def torch(bench: Bench) -> None:
    """Allreduce against torch's sum and copies."""
    if reason := why_no_torch():
        raise Skipped(reason)
    for nbytes in bench.scale.against:
        for dtype in bench.scale.dtypes:
            buffers = bench.buffers(dtype, nbytes)
            others = [torch_sum.candidate(bench.clock, buffers)]
            bench.compare("torch", buffers, "allreduce", bench.ours(buffers, "allreduce"), others)


def staged(bench: Bench) -> None:
    """Arrays that peers cannot read, such as torch's between processes, against arrays in windows."""
    world = VirtualWorld(bench.ranks, staged=True)
    for nbytes in bench.scale.tuned:
        for dtype in bench.scale.dtypes:
            buffers = bench.buffers(dtype, nbytes)
            ours = [Ours(each, bench.clock, buffers, "allreduce", "direct") for each in (bench.world, world)]
            bench.compare("staged", buffers, "allreduce", ours)


def packing(bench: Bench) -> None:
    """The copies around a fused allreduce: ResNet-50's gradients into the fusion buffer and out of it."""
    work = Packing(bench.clock, bench.scale.tensors)
    wrong = []
    for candidate in work.candidates:
        work.poison()
        candidate.call(0)
        wrong.append(work.wrong())
    timings = bench.clock.compare(work.candidates, bench.scale.rounds)
    for candidate, timing, before in zip(work.candidates, timings, wrong, strict=True):
        work.poison()
        timing.launch()
        row = Row(
            "packing", candidate.name, "copy", "float32", bench.ranks, work.nbytes, timing.seconds, timing.rounds,
            timing.calls, 1, before + work.wrong(),
        )  # fmt: skip
        bench.emit(bench.counted(row, 4 * work.nbytes))  # read and written, twice


def against_nccl(bench: Bench) -> None:
    """Allreduce and broadcast against NCCL; the largest allreduce with every topology."""
    library, _, reason = nccl.find()
    if library is None:
        raise Skipped(reason)
    peer = nccl.Nccl(library, bench.clock, bench.ranks)
    for nbytes in sorted(bench.scale.against, reverse=True):  # NCCL may hang: the goals' sizes first
        for dtype in bench.scale.dtypes:
            buffers = bench.buffers(dtype, nbytes)
            for collective in COLLECTIVES:
                others = [peer.candidate(buffers, collective)]
                largest = nbytes == max(bench.scale.against) and collective == "allreduce"
                ours = bench.ours(buffers, collective, TOPOLOGIES if largest else TOPOLOGIES[:1])
                bench.compare("nccl", buffers, collective, ours, others)


def same_bits(bench: Bench) -> None:
    """`direct` in float32 on every path."""
    bench.emit(bits.check(bench.clock, bench.ranks, bench.ours))


def tuning(bench: Bench) -> None:
    """`direct` with fewer channels, with the tile size of this process."""
    tile = format_size(int(setting(TILE)))
    most = bench.world.channels
    for nbytes in bench.scale.tuned:
        for dtype in bench.scale.dtypes:
            buffers = bench.buffers(dtype, nbytes)
            ours = [
                Ours(bench.world, bench.clock, buffers, "allreduce", "direct", channels)
                for channels in sorted({max(1, most * eighths // 8) for eighths in (1, 2, 4, 6, 8)})
            ]
            bench.compare(f"tile {tile}", buffers, "allreduce", ours)


class Skipped(Exception):
    """A part that cannot be measured here; the message has the reason."""


PARTS: dict[str, Callable[[Bench], None]] = {
    "bits": same_bits, "small": small, "torch": torch, "copies": copies, "staged": staged, "packing": packing,
    "nccl": against_nccl, "sweep": sweep, "tuning": tuning,
}  # fmt: skip
"""By name, in the order of measurement."""
RANKS = (8, 4, 2)
TILE = "PYCOLLECTIVE_CUDA_TILE"
TILES = tuple(1 << power for power in range(15, 22))
"""Maximum tile sizes in bytes to try."""


@dataclass(frozen=True)
class Run:
    """A separate process."""

    parts: tuple[str, ...]
    ranks: int
    environment: dict[str, str] = field(default_factory=dict)


def all_runs(tiles: Sequence[int] = TILES) -> Iterator[Run]:
    """Most important first. NCCL has separate processes, since it may hang; so has each tile size."""
    ours = tuple(part for part in PARTS if part not in ("nccl", "tuning"))
    yield Run(ours, RANKS[0])
    yield from (Run(("nccl",), ranks, nccl.ENVIRONMENT) for ranks in RANKS[::-1])
    yield from (Run(ours, ranks) for ranks in RANKS[1:])
    yield from (Run(("tuning",), ranks, {TILE: str(tile)}) for ranks in (RANKS[0], RANKS[-1]) for tile in tiles)

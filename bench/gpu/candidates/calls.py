"""Our own calls: n virtual ranks in one launch, as candidates, and the bytes that an algorithm must move."""

from __future__ import annotations

from typing import Any

from pycollective.comm import request
from pycollective.comm.cuda.virtual import VirtualWorld
from pycollective.comm.planner import PLACEMENTS, ScheduleKey, choose, keeps_small, schedule_for
from pycollective.schedule.compiler.schedule import Placement, Schedule

from ..clock import Candidate, Clock
from .buffers import Buffers

TIMEOUT = 5.0
"""Seconds that a kernel waits for a peer."""


class Ours:
    """One collective with one topology on every set of buffers.

    Args:
        channels: maximum number of thread blocks per rank; 0 for as many as there are.

    Attributes:
        plan: the plan: `.channels`, `.low_latency`, `.placement`.
        channels: thread blocks per rank.
        candidate: the candidate to time.
    """

    def __init__(
        self, world: VirtualWorld, clock: Clock, buffers: Buffers, collective: str, topology: str, channels: int = 0
    ) -> None:
        self._world, self._clock = world, clock
        self.collective, self.topology, self._nbytes = collective, topology, buffers.nbytes
        options: Any = {
            "topology": topology, "timeout": TIMEOUT, "max_channels": channels or None, "stream": clock.stream
        }  # fmt: skip
        root = 0 if collective == "broadcast" else -1
        self._requests = [
            [
                request.read(
                    collective, x if root < 0 or rank == root else None, x if rank == root else out, None, options, root
                )
                for rank, (x, out) in enumerate(zip(inputs, outputs, strict=True))
            ]
            for inputs, outputs in zip(buffers.inputs, buffers.outputs, strict=True)
        ]  # fmt: skip
        self.plan: Any = world.plan(self._requests[0]).plan
        self.channels = min(self.plan.channels, channels or self.plan.channels)
        name = topology + (f", {channels} channels" if channels else "") + (", staged" if world.staged else "")
        self.candidate = Candidate(name, self.call)

    def call(self, i: int) -> None:
        """Enqueue a call on the i-th set."""
        self._world.run(self._requests[i % len(self._requests)], self._clock.stream)

    def fault(self) -> str | None:
        """The error that a kernel has recorded: the ranks, and the awaited step with its line; None without one."""
        if (found := self._world.team.fault()) is None:
            return None
        kind, rank, peer, call, expected, seen, base = found
        text = f"{self.candidate.name} {self.collective} of {self._nbytes} bytes, {self._world.size} ranks, {kind}: "
        text += f"rank {rank}, rank {peer}, call {call}, expected {expected:#x}, found {seen:#x}, base {base:#x}"
        if kind == "timeout" and expected > base > 0:
            schedule = self._schedule(self._nbytes)
            tile, step = divmod(expected - base - 1, schedule.stride)
            text += f": step {step} of tile {tile}, {schedule.line(peer, step) or 'added by the compiler'}"
        return text

    def least_bytes(self, nbytes: int) -> int:
        """Bytes of device memory that the algorithm reads and writes for `nbytes` per rank; 0 on the packet path."""
        return 0 if self.plan.low_latency else moved(self._schedule(nbytes), nbytes)

    def _schedule(self, nbytes: int) -> Schedule:
        instance, small = choose(self.collective, self.topology, nbytes)
        where = Placement[PLACEMENTS[self.plan.placement]]
        root = 0 if self.collective == "broadcast" else None
        small = small and keeps_small(instance, self.collective, self._world.size, root, where)
        key = ScheduleKey(instance, self.collective, self._world.size, root, where, small)
        return schedule_for(key)


def moved(schedule: Schedule, nbytes: int) -> int:
    """Bytes that a schedule's steps read and write, all ranks together: k reads and m writes of each chunk."""
    blocks = 0
    for rank in schedule.ranks:
        for step in rank.steps:
            first = (step.sources[0].rank, step.sources[0].place)
            alone = len(step.sources) == 1  # a copy skips a target that is its source
            writes = sum(not (alone and (target.rank, target.place) == first) for target in step.targets)
            blocks += writes + (len(step.sources) if writes else 0)
    return blocks * nbytes // schedule.chunks

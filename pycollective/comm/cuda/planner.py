"""Plans the calls on GPUs: of a signature the low-latency path or a compiled schedule, which a team can launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pycollective import _core
from pycollective.comm.arguments.operators import CUSTOM, Op, number_of
from pycollective.comm.cuda.arrays import ITEMSIZE
from pycollective.comm.cuda.signature import Signature
from pycollective.comm.host.segments import setting
from pycollective.comm.planner import PLACEMENTS, ScheduleKey, choose, keeps_small, label_of, schedule_for
from pycollective.settings import TABLE

MOST_PLANS = 4096
PLAN_BYTES = 4 << 20
"""Bytes of device memory initially reserved for a communicator's plans."""
_PACKET_BYTES = 8  # of data in a packet of the low-latency path: one element must fit
_MASK = (1 << 64) - 1
_ALIGN_BYTES = 64  # chunks of one buffer are cut at multiples of this


class Planned(NamedTuple):
    """A plan and its description.

    Attributes:
        plan: the argument of `_cuda.Team.run`.
        digest: equal on ranks whose calls match.
        text: description of the call.
    """

    plan: Any
    digest: int
    text: str

    def at(self, step: int) -> Planned:
        """Signature of a step of a weighted call: ranks compare it, but plans do not depend on it."""
        return self._replace(digest=(self.digest + step) & _MASK, text=f"{self.text}, step {step}")


class DevicePlanner:
    """Plans of one team, made once per signature; the `MOST_PLANS` most recently used are kept.

    Args:
        team: `_cuda.Team`. size: of the communicator. ranks: those run by the team: one, or all.

    Attributes:
        plan, takes_packets: see `_PlanMaker`.
    """

    def __init__(self, team: Any, size: int, ranks: Sequence[int]) -> None:
        maker = _PlanMaker(team, size, ranks)  # the caches hold the maker, not this planner: no cycle keeps plans alive
        remembered = functools.lru_cache(maxsize=MOST_PLANS)
        self.plan: Callable[[Signature, int, bool], Planned] = remembered(maker.plan)
        self.takes_packets: Callable[[Signature], bool] = remembered(maker.takes_packets)


class _PlanMaker:
    def __init__(self, team: Any, size: int, ranks: Sequence[int]) -> None:
        self._team, self._size, self._ranks = team, size, ranks

    def takes_packets(self, s: Signature) -> bool:
        """Return whether a call takes the low-latency path: the default topology's bits in one exchange."""
        # A rank reduces what all ranks have sent.
        if s.row.prefix != "none" or s.row.weighted or ITEMSIZE[s.dtype] > _PACKET_BYTES:
            return False
        from pycollective.schedule.language import registry

        instance, _ = choose(s.collective, s.topology, s.nbytes)
        most = self._team.low_latency_bytes
        if 0 < s.max_channels < self._team.low_latency_channels:  # packets belong to a channel, whatever the length
            most = min(most, s.max_channels * self._team.low_latency_share)
        return registry.label(instance) == "direct" and s.nbytes <= most

    def plan(self, s: Signature, placement: int, negotiates: bool) -> Planned:
        """The plan of a call.

        Args:
            placement: where this rank's arrays are stored; a plan for shared arrays has the staged one as its fallback.
            negotiates: whether the ranks agree on the placement on entry.
        """
        label = label_of(choose(s.collective, s.topology, s.nbytes)[0])
        if self.takes_packets(s):
            digest = s.digest(label, "packets")
            return Planned(self._packets(s, digest), digest, s.text(label))
        tile = setting("PYCOLLECTIVE_CUDA_TILE")  # ranks with other tiles would wait for other step counts
        digest = s.digest(label, f"schedule in tiles of {tile:.0f} bytes")
        plan = self._team.plan(
            schedule=self._compiled(s, placement), fallback=self._compiled(s, 0) if placement else None, dtype=s.dtype,
            **self._arithmetic(s), weighted=s.row.weighted, placement=placement, negotiates=negotiates, digest=digest,
        )  # fmt: skip
        text = s.text(label)
        if tile != TABLE["PYCOLLECTIVE_CUDA_TILE"].default:
            text += f", in tiles of {tile:.0f} bytes"
        return Planned(plan, digest, text)

    def _packets(self, s: Signature, digest: int) -> Any:
        exchanges = [exchange(s, rank, self._size) for rank in self._ranks]
        longest = max(s.counts) if s.counts else s.count
        return self._team.low_latency_plan(
            dtype=s.dtype, **self._arithmetic(s), exchanges=exchanges, longest=longest, digest=digest
        )

    def _arithmetic(self, s: Signature) -> dict[str, Any]:
        if isinstance(s.op, Op):
            from pycollective.comm.cuda.operators import compile_for_device

            number, custom = CUSTOM, compile_for_device(s.op, s.dtype, self._team)
        else:
            number, custom = number_of(s.op), None
        divisor = float(self._size) if s.op == "avg" else 1.0
        return {
            "op": number, "custom": custom, "prescale": s.scale[0], "divisor": divisor, "postscale": s.scale[1],
            "reduces": s.row.reduces,
        }  # fmt: skip

    def _compiled(self, s: Signature, placement: int) -> tuple[Any, ...]:
        from pycollective.schedule.compiler.schedule import Placement

        instance, small = choose(s.collective, s.topology, s.nbytes)
        rooted = s.root if s.row.rooted else None
        where = Placement[PLACEMENTS[placement]]
        small = small and keeps_small(instance, s.row.program, self._size, rooted, where)
        schedule = schedule_for(ScheduleKey(instance, s.row.program, self._size, rooted, where, small))
        layout = layout_of(s, self._size, schedule.chunks)
        tables = [schedule.table(rank) for rank in self._ranks]
        return tables, layout.length, layout.input_offset, layout.output_offset


def layout_of(s: Signature, size: int, chunks: int) -> _core.Layout:
    """Positions of a call's chunks in its arrays; `chunks`: how many, if the program chooses."""
    if not s.row.in_blocks:
        return _core.Layout.split(s.count, chunks, max(1, _ALIGN_BYTES // ITEMSIZE[s.dtype]))
    assert s.counts is not None
    if s.row.split == "pairs":
        return _core.Layout.matrix(list(s.counts), size)
    return _core.Layout.blocks(list(s.counts), s.row.packed_input, s.row.packed_output)


Numbers = list[int]


def exchange(s: Signature, rank: int, size: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """What a rank sends to and receives from every rank: offsets and counts of both, in elements."""
    send_offset, send_count = [0] * size, [0] * size
    recv_offset, recv_count = [0] * size, [0] * size
    layout = layout_of(s, size, 1)
    length, input_offset, output_offset = layout.length, layout.input_offset, layout.output_offset
    for peer in range(size):
        sent, received = s.row.block(rank, peer, size, s.root), s.row.block(peer, rank, size, s.root)
        if sent is not None:
            send_offset[peer], send_count[peer] = input_offset[sent], length[sent]
        if received is not None:
            recv_offset[peer], recv_count[peer] = output_offset[received], length[received]
    return send_offset, send_count, recv_offset, recv_count

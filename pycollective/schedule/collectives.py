"""The table of collectives, used by everything else.

It is read by the language, the compiler and the verifier, the communicator and its backends, the C++ core, the engine,
the command line, the benchmarks and the tests. Adding a collective takes a row here, programs in topologies and a
public method.

A *place* is a pair (rank, chunk). A row specifies which places hold a contribution when the call begins, which hold a
result when it ends, and of which ranks' contributions that result consists, each exactly once.

Standard library only, and no import of the package when this file is loaded: the build runs it on its own, `python
pycollective/schedule/collectives.py HEADER`, to write the same table for C++ (see csrc/schedule/collectives.h).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Places = Literal["all", "root", "others", "own", "sent", "received"]
"""The chunks of a rank's array: all; all on the root only, or on all but the root; the chunk with the rank's number;
the chunks that the rank sends to each rank, or receives from each."""
Split = Literal["free", "ranks", "pairs"]
"""How the buffer is divided: as the program chooses, in one block per rank, or in one block per pair of ranks."""
Prefix = Literal["none", "inclusive", "exclusive"]
"""The contributions in a result on rank r: all; those of ranks 0..r; those of ranks 0..r-1."""
InPlace = Literal["never", "staged", "windows"]
"""Whether `out` may be `x`: never; through scratch; also in windows, where peers read it while it is overwritten."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective.

    Attributes:
        name: its name in a topology, in the communicator, in errors and in the C++ core.
        input: which places hold a contribution when the call begins (the input buffers).
        output: which places can hold a result when the call ends (the output buffers).
        split: how the buffer is divided: as the program chooses, one chunk per rank, or one chunk per pair of ranks.
        reduces: contributions are combined by an operator; prescale, postscale and averaging apply.
        rooted: it takes a root.
        prefix: the ranks whose contributions are in a result.
        in_place: whether input and output may be one array.
        windows: arrays that peers can address are used in place; otherwise the call is always staged.
        single_buffer: in windows the call uses only the output, into which the root's input is copied first.
        weighted: results are weighted sums of some ranks' contributions, which the call's graph determines; every
            contribution enters in windows, but results are private.
        program: the collective whose programs it runs; its own by default.
        received_as: the name of the call on the receiving rank, if different.
        halves: two collectives that give the same result one after the other: the first leaves each rank a block of it,
            which the second joins; empty if there are none.
    """

    name: str
    input: Places = "all"
    output: Places = "all"
    split: Split = "free"
    reduces: bool = False
    rooted: bool = False
    prefix: Prefix = "none"
    in_place: InPlace = "staged"
    windows: bool = True
    single_buffer: bool = False
    weighted: bool = False
    program: str = ""
    received_as: str = ""
    halves: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("name", "program", "received_as"):
            if not isinstance(getattr(self, field), str):
                raise TypeError(f"{field} must be a string, not {type(getattr(self, field)).__name__}")
        object.__setattr__(self, "program", self.program or self.name)
        object.__setattr__(self, "received_as", self.received_as or self.name)

    # -- contributions and results -------------------------------------------------------------------------------------

    def starts(self, rank: int, chunk: int, size: int, root: int) -> bool:
        """Return whether the place (rank, chunk) holds a contribution when a call of that `size` and `root` begins."""
        return _holds(self.input, rank, chunk, size, root)

    def ends(self, rank: int, chunk: int, size: int, root: int) -> bool:
        """Return whether the place (rank, chunk) must hold a result when a call of that `size` and `root` ends."""
        return _holds(self.output, rank, chunk, size, root) and self.has_result(rank)

    def contributes(self, source: int, rank: int) -> bool:
        """Return whether a result on `rank` contains the contribution of `source`, if there is one."""
        if self.prefix == "none":
            return True
        return source < rank or (source == rank and self.prefix == "inclusive")

    def contributors(self, rank: int, holders: int) -> int:
        """The ranks of `holders`, which hold contributions to a chunk, that are in a result on `rank`; both as bits."""
        if self.prefix == "none":
            return holders
        return holders & ((1 << (rank + (self.prefix == "inclusive"))) - 1)

    def has_input(self, rank: int, root: int) -> bool:
        """Return whether `rank` passes data to a call with this `root`."""
        return _has(self.input, rank, root)

    def has_output(self, rank: int, root: int) -> bool:
        """Return whether `rank` has an output buffer in a call with this `root`."""
        return _has(self.output, rank, root)

    def has_result(self, rank: int) -> bool:
        """Return whether the call writes the rank's output, if there is one: its result has contributions."""
        return self.prefix != "exclusive" or rank > 0

    @property
    def averages(self) -> bool:
        """Whether it supports the operator avg: all results have the same number of contributions."""
        return self.reduces and self.prefix == "none"

    @property
    def one_way(self) -> bool:
        """Whether data goes one way, to or from a root or to higher ranks: some ranks need nothing of some others."""
        return self.rooted or self.prefix != "none"

    # -- blocks --------------------------------------------------------------------------------------------------------

    @property
    def in_blocks(self) -> bool:
        """Whether the buffer is divided by counts: one per rank, or one per pair of ranks, by sender, then receiver."""
        return self.split != "free"

    @property
    def is_message(self) -> bool:
        """Whether it goes from one rank of a channel to the other."""
        return self.output == "others"

    @property
    def packed_input(self) -> bool:
        """Whether the input is the rank's own block only, instead of all blocks in rank order."""
        return self.input == "own"

    @property
    def packed_output(self) -> bool:
        """Whether the output is the rank's own block only, instead of all blocks in rank order."""
        return self.output == "own"

    def block(self, sender: int, receiver: int, size: int, root: int) -> int | None:
        """The chunk that `sender` contributes to the result of `receiver`, or None; 0 if the split is free.

        Args:
            sender, receiver: ranks; may be the same.
            size, root: of the call.
        """
        if self.split == "free":
            chunk = 0
        elif self.split == "pairs":
            chunk = sender * size + receiver
        else:
            chunk = sender if self.packed_input else receiver
        if not (self.starts(sender, chunk, size, root) and self.ends(receiver, chunk, size, root)):
            return None
        return chunk if self.contributes(sender, receiver) else None

    def required_chunks(self, size: int) -> int | None:
        """The number of chunks that a program must use on `size` ranks; None if free."""
        from pycollective import checks

        size = checks.integer(size, "size", 0)
        return {"free": None, "ranks": size, "pairs": size * size}[self.split]

    def busbw_factor(self, size: int) -> float:
        """busbw over algbw on `size` ranks, as in nccl-tests (doc/PERFORMANCE.md there).

        It makes rates at different rank counts comparable: the bandwidth of the slowest link with an optimal algorithm.
        """
        from pycollective import checks

        size = checks.integer(size, "size", 1)
        if self.in_blocks:
            return (size - 1) / size
        all_to_all = self.input == self.output == "all" and self.prefix == "none" and not self.weighted
        return 2 * (size - 1) / size if all_to_all else 1.0


def _holds(places: Places, rank: int, chunk: int, size: int, root: int) -> bool:
    if places == "all":
        return True
    if places == "own":
        return rank == chunk
    if places == "sent":
        return rank == chunk // size
    if places == "received":
        return rank == chunk % size
    return (rank == root) == (places == "root")


def _has(places: Places, rank: int, root: int) -> bool:
    return places not in ("root", "others") or (rank == root) == (places == "root")


# fmt: off
ELSEWHERE = {
    "bcast": "broadcast", "Bcast": "broadcast", "Ibcast": "ibroadcast", "Get_rank": "rank", "Get_size": "size",
    "get_rank": "rank", "get_world_size": "size", "all_reduce": "allreduce", "all_gather": "allgather",
    "all_gather_into_tensor": "allgather", "reduce_scatter_tensor": "reduce_scatter", "all_to_all": "alltoall",
    "all_to_all_single": "alltoall",
}
"""Names of mpi4py and torch.distributed, but for those of mpi4py that only begin with a capital, and ours."""
CALLS: dict[str, Collective] = {row.name: row for row in (
    Collective("allreduce", reduces=True, in_place="windows", halves=("reduce_scatter", "allgather")),
    Collective("broadcast", input="root", rooted=True, single_buffer=True),
    Collective("reduce", output="root", reduces=True, rooted=True),
    Collective("reduce_scatter", output="own", split="ranks", reduces=True),
    Collective("scan", reduces=True, prefix="inclusive", in_place="windows"),
    Collective("exscan", reduces=True, prefix="exclusive", in_place="windows"),
    Collective("allgather", input="own", split="ranks"),
    Collective("gather", input="own", output="root", split="ranks", rooted=True, windows=False),
    Collective("scatter", input="root", output="own", split="ranks", rooted=True, windows=False),
    Collective("alltoall", input="sent", output="received", split="pairs", in_place="never"),
    Collective("mix", weighted=True),
    # An allreduce of empty arrays: its operator and its topology do not matter.
    Collective("barrier", windows=False, program="allreduce"),
    # A message from rank 0 to rank 1 of a channel: a broadcast to one.
    Collective("send", input="root", output="others", windows=False, program="broadcast", received_as="recv"),
)}
# fmt: on
"""Every call of the core, by name; their order determines their numbers there."""

COLLECTIVES: dict[str, Collective] = {row.name: row for row in CALLS.values() if row.program == row.name}
"""Every collective that a topology can implement, by name."""

NUMBERS: dict[str, int] = {name: number for number, name in enumerate(CALLS)}
"""The C++ core's number of each call."""

PRIMARY = "allreduce"
"""The collective that the settings of a job are about: the topology, or NCCL, of calls that name none."""

JOINING = "allgather"
"""The collective by which the package itself exchanges bytes: every rank gets the blocks of all, in rank order."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that can be submitted to the engine, with Horovod's name.

    Attributes:
        name: its name.
        collective: the collective on the ranks' arrays; empty if there is none.
        fused: several of them may be executed as one.
        rows_differ: the first extents of the ranks' arrays may differ.
        after_join: it continues without the ranks that have joined.
        has_array: it has an input; without one it is negotiation only.
    """

    name: str
    collective: str = ""
    fused: bool = False
    rows_differ: bool = False
    after_join: bool = False
    has_array: bool = True

    @property
    def reduces(self) -> bool:
        """The ranks must agree on an operator and on factors."""
        return bool(self.collective) and CALLS[self.collective].reduces

    @property
    def rooted(self) -> bool:
        """The ranks must agree on a root."""
        return bool(self.collective) and CALLS[self.collective].rooted

    @property
    def in_pairs(self) -> bool:
        """Whether a rank's array has a block for every rank, of lengths that it chooses."""
        return bool(self.collective) and CALLS[self.collective].split == "pairs"

    @property
    def shaped_as_input(self) -> bool:
        """Whether its result has as many elements as its input."""
        return self.has_array and not (self.collective and CALLS[self.collective].in_blocks)


OPERATIONS: dict[str, Operation] = {
    row.name: row
    for row in (
        Operation("allreduce", "allreduce", fused=True, after_join=True),
        Operation("adasum"),
        Operation("broadcast", "broadcast"),
        Operation("allgather", "allgather", rows_differ=True, after_join=True),
        Operation("alltoall", "alltoall", rows_differ=True),
        Operation("reducescatter", "reduce_scatter"),
        Operation("barrier", "barrier", after_join=True, has_array=False),
        Operation("join", has_array=False),
        Operation("call", has_array=False),
    )
}
"""Every operation of the engine, by name; their order determines their numbers in the core."""


def program_of(name: str) -> str:
    """The collective whose programs a call runs; the name itself if there is no such call."""
    return CALLS[name].program if name in CALLS else name


def collective_named(name: str) -> Collective:
    """The collective of that name; ProgramError if there is none."""
    from pycollective import checks
    from pycollective.errors import ProgramError

    try:
        return COLLECTIVES[name]
    except (KeyError, TypeError):
        raise ProgramError(
            f"no collective is called {checks.shown(name)}; there are {', '.join(COLLECTIVES)}"
        ) from None


# -- for C++ -----------------------------------------------------------------------------------------------------------


def header() -> str:
    """The tables as the X macros that csrc/schedule/collectives.h and csrc/engine/negotiation/signature.h use."""
    return "\n".join([_HEAD, *_macros()])


_HEAD = """// Generated from pycollective/schedule/collectives.py; do not edit.
#pragma once

// The columns are the attributes of Collective and of Operation, in the order of csrc/schedule/collectives.h and
// csrc/engine/negotiation/signature.h.
"""


def _macros() -> Iterator[str]:
    yield "#define PC_COLLECTIVES(X) \\"
    for row in CALLS.values():
        flags = map(_cpp, (row.reduces, row.rooted, row.windows, row.single_buffer, row.weighted))
        words = (row.name, row.input, row.output, row.split, row.prefix, row.in_place, *flags, row.program)
        yield f'  X({", ".join(words)}, "{row.received_as}") \\'
    yield "\n#define PC_ENGINE_OPERATIONS(X) \\"
    for one in OPERATIONS.values():
        yield f"  X({', '.join((one.name, *map(_cpp, (one.fused, one.reduces, one.rooted, one.rows_differ))))}) \\"
    yield "\n"


def _cpp(flag: bool) -> str:
    return "true" if flag else "false"


if __name__ == "__main__":
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[1]).write_text(header())

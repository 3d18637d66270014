"""The steps of a schedule: what a rank executes for a chunk."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Literal

IN = -1
"""Place of a step's source: the rank's input buffer."""
OUT = -2
"""Place of a step's source or target: the rank's output buffer. Places from 0 up are cells of shared scratch."""

Kind = Literal["combine", "send", "recv"]
"""What a step does: combine memory of its rank's host, send a message to other hosts, or receive one."""
COMBINE: Kind = "combine"
SEND: Kind = "send"
RECV: Kind = "recv"


@dataclass(frozen=True, slots=True)
class Source:
    """An operand of a step: the step's chunk in `place` of `rank`.

    `initial` marks a raw contribution of a reducing collective, to which prescale has not yet been applied.
    """

    rank: int
    place: int
    initial: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """A destination of a step: the step's chunk in `place` of `rank`."""

    rank: int
    place: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until `peer` has completed a step of the same tile; 0: until it has entered the call.

    `count` is the step's index + 1, plus the schedule's stride for each iteration that the step lags behind. The wait
    of a recv for its send step, on another host, is for the arrival of the message.
    """

    peer: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """Wait, combine the sources in order, write the result to all targets, publish progress.

    A target may be the memory of any one of the sources.

    Between hosts, a send has the place of its one source sent to its targets, ranks on other hosts, whose place means
    nothing. It does not wait for them. A recv stores one message in its one target, a place of its own rank; its source
    is the sender, with the count of the send step instead of a place, and its first wait is for that step. Messages
    between two ranks arrive in the order in which they are sent.

    Attributes:
        chunk: the chunk of all sources and targets.
        complete: the result holds all contributions and no source did: postscale is applied here.
        consumed: a rank waits for exactly this step, so progress must be published after it.
        weights: factors of the sources, whose products are added; empty: they are combined by the call's operator.
        line: "file:line" of the statement that it executes; empty for copies that the compiler adds.
        kind: combine, send or recv.
        lag: in iteration i of the loop over tiles, the step works on tile i - lag.
        early: of a recv, its target is free when the tile is opened, not only when the step is reached.
    """

    chunk: int
    sources: tuple[Source, ...]
    targets: tuple[Target, ...]
    waits: tuple[Wait, ...] = ()
    complete: bool = False
    consumed: bool = False
    weights: tuple[float, ...] = ()
    line: str = field(default="", compare=False, repr=False)
    kind: Kind = COMBINE
    lag: int = 0
    early: bool = False


def place_name(rank: int, place: int) -> str:
    """A place as in error messages and drawings: `in[2]`, `out[0]`, `scratch[1] cell 3`."""
    if place == IN:
        return f"in[{rank}]"
    return f"out[{rank}]" if place == OUT else f"scratch[{rank}] cell {place}"


def describe_step(step: Step) -> str:
    """One step as text: `chunk 2: out[1] = in[1] + scratch[0] cell 3`, `chunk 2: in[1] to rank 4`."""
    if step.kind == SEND:
        places = " + ".join(place_name(source.rank, source.place) for source in step.sources)
        return f"chunk {step.chunk}: {places} to rank {', '.join(str(target.rank) for target in step.targets)}"
    targets = ", ".join(place_name(target.rank, target.place) for target in step.targets)
    if step.kind == RECV:
        return f"chunk {step.chunk}: {targets} from rank {', '.join(str(source.rank) for source in step.sources)}"
    factors = [f"{weight:g} " for weight in step.weights]  # of a wrong schedule, which errors describe, too few or many
    named = itertools.zip_longest(factors, (place_name(source.rank, source.place) for source in step.sources))
    sources = " + ".join(f"{factor or ''}{place or '?'}" for factor, place in named)
    return f"chunk {step.chunk}: {targets} = {sources}"

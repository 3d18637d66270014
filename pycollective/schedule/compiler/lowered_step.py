"""A step while it is compiled: what the passes after the first one know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pycollective.schedule.compiler.steps import COMBINE, Kind, Source, Target
from pycollective.schedule.compiler.values import Value


@dataclass(eq=False, repr=False, slots=True)
class LoweredStep:
    """A step before it has a position in its rank's list.

    Attributes:
        depends: steps that must complete before.
        entered: peers that must have entered the call before.
        depth: the longest chain of dependencies up to here.
        lag: the number of tiles behind the newest one: the largest number of messages on such a chain, or a multiple.
        position: index in the rank's list, set by the pass that orders the steps.
        line: "file:line" of the statement; empty for steps that only make inputs available.
        value: what a send or recv transfers.
        receipts: of a send, the recv steps of its message, one for each target.
        message: of a recv, the send step.
    """

    rank: int
    chunk: int
    sources: list[Source]
    targets: list[Target]
    complete: bool
    line: str = ""
    weights: tuple[float, ...] = ()
    kind: Kind = COMBINE
    value: Value | None = None
    message: LoweredStep | None = None
    receipts: list[LoweredStep] = field(default_factory=list, init=False)
    depends: list[LoweredStep] = field(default_factory=list, init=False)
    entered: list[int] = field(default_factory=list, init=False)
    depth: int = field(default=0, init=False)
    lag: int = field(default=0, init=False)
    position: int = field(default=-1, init=False)

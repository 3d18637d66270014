"""A step while it is compiled: what the passes after the first one know of it."""

from __future__ import annotations

from pycollective.schedule.compiler.steps import COMBINE, Kind, Source, Target
from pycollective.schedule.compiler.values import Value


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

    __slots__ = (
        "chunk",
        "complete",
        "depends",
        "depth",
        "entered",
        "kind",
        "lag",
        "line",
        "message",
        "position",
        "rank",
        "receipts",
        "sources",
        "targets",
        "value",
        "weights",
    )

    def __init__(
        self,
        rank: int,
        chunk: int,
        sources: list[Source],
        targets: list[Target],
        complete: bool,
        line: str,
        weights: tuple[float, ...] = (),
        kind: Kind = COMBINE,
        value: Value | None = None,
        message: LoweredStep | None = None,
    ) -> None:
        self.rank = rank
        self.chunk = chunk
        self.sources = sources
        self.targets = targets
        self.complete = complete
        self.line = line
        self.weights = weights
        self.kind: Kind = kind
        self.value = value
        self.message = message
        self.receipts: list[LoweredStep] = []
        self.depends: list[LoweredStep] = []
        self.entered: list[int] = []
        self.depth = 0
        self.lag = 0
        self.position = -1

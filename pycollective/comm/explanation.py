"""The path that a call would take, as text and in notebooks."""

from __future__ import annotations

from dataclasses import dataclass

from pycollective import notebook


@dataclass(frozen=True)
class Explanation:
    """How a call would be executed.

    Attributes:
        collective, nbytes: the call.
        topology: label of the topology, or "nccl".
        variant: "small" or "large".
        order: the order in which elements are reduced: "rank", "fixed" or "chunk".
        window: path of arrays from `comm.empty`.
        plain: path of other arrays.
        reason: why.
        gpu: path of arrays in GPU memory; empty before the first call on one.
        waiting: whether every rank has a core of its own, and so how it waits for peers.
        links: the bytes that cross from each host to each other one; empty on one host.
    """

    collective: str
    nbytes: int
    topology: str
    variant: str
    order: str
    window: str
    plain: str
    reason: str
    gpu: str = ""
    waiting: str = ""
    links: str = ""

    def _repr_html_(self) -> str:
        rows = [
            ("topology", f"{self.topology} ({self.variant} messages)"),
            ("order of reduction", self.order),
            ("arrays from comm.empty", self.window),
            ("other arrays", self.plain),
            ("because", self.reason),
            *self._more(),
        ]
        return notebook.table(rows, caption=f"{self.collective} of {self.nbytes} bytes")

    def __str__(self) -> str:
        lines = [
            f"{self.collective} of {self.nbytes} bytes: topology {self.topology} ({self.variant} messages, "
            f"order of reduction: {self.order})",
            f"arrays from comm.empty: {self.window}",
            f"other arrays: {self.plain}",
            f"because {self.reason}",
            *map(": ".join, self._more()),
        ]
        return "\n  ".join(lines)

    def _more(self) -> list[tuple[str, str]]:
        rows = [("between hosts", self.links), ("arrays on the GPU", self.gpu), ("cores", self.waiting)]
        return [(what, text) for what, text in rows if text]

"""The simulator's cost model: the cost of a message and of a reduction on a network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pycollective import checks

_MOST = (1 << 31) - 1  # ranks are numbered in 32 bits


@dataclass(frozen=True, slots=True)
class Network:
    """Ranks, each with one full-duplex port: it sends one message and receives one at a time.

    A message of m bytes takes latency + m / bandwidth, and occupies the sender's and the receiver's port for that long:
    α + mβ in the model of Hockney, "The communication challenge for MPP" (Parallel Computing 1994), as used by Thakur,
    Rabenseifner and Gropp (IJHPCA 2005). Combining k operands of m bytes takes (k-1) m / reduction: their γ.

    Not modelled: caches, the memory bandwidth that ranks of a node share, staging, links and switches between the ports
    and their contention, and messages that interrupt computation.

    Attributes:
        latency: seconds per message (α).
        bandwidth: bytes per second of a port (1/β).
        reduction: bytes per second that a rank reduces (1/γ); math.inf: at no cost.
        ranks_per_node: consecutive ranks that share a node. `latency` and `bandwidth` are those between nodes.
        node_latency, node_bandwidth: the same within a node; None: as between nodes.
        shared_port: the ranks of a node share one port in each direction for messages to other nodes.

    Raises:
        TypeError: not numbers.
        ValueError: a bandwidth not above 0, a latency below 0 or not finite, or less than one rank per node.
    """

    latency: float = 5e-6
    bandwidth: float = 12.5e9
    reduction: float = math.inf
    ranks_per_node: int = 1
    node_latency: float | None = None
    node_bandwidth: float | None = None
    shared_port: bool = False

    def __post_init__(self) -> None:
        for name in ("bandwidth", "reduction", "node_bandwidth"):
            value = getattr(self, name)
            if value is not None:  # bytes a second
                object.__setattr__(self, name, checks.number(value, name, above=0, finite=False))
        for name in ("latency", "node_latency"):
            value = getattr(self, name)
            if value is not None:  # seconds
                object.__setattr__(self, name, checks.number(value, name, 0))
        object.__setattr__(self, "ranks_per_node", checks.integer(self.ranks_per_node, "ranks_per_node", 1, _MOST))
        object.__setattr__(self, "shared_port", checks.flag(self.shared_port, "shared_port"))

    @property
    def between_nodes(self) -> tuple[float, float]:
        """α and β of a message between nodes."""
        return self.latency, 1 / self.bandwidth

    @property
    def within_node(self) -> tuple[float, float]:
        """α and β of a message within a node."""
        latency = self.latency if self.node_latency is None else self.node_latency
        return latency, 1 / (self.bandwidth if self.node_bandwidth is None else self.node_bandwidth)

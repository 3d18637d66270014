"""Options of a process group: `pg_options` of init_process_group and new_group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Options:
    """Settings of one process group, the same on all its ranks.

    Attributes:
        topology: how data moves, for the collectives that this topology implements ("ring", "tree", "wheel(hub=2)", a
            class, an instance); None and all other collectives use the default, `direct`.
        engine: send every allreduce, broadcast and barrier through the engine, which fuses small operations in progress
            at the same time, records them in the timeline and watches for stalls. Without it calls go directly to the
            communicator: a single one completes sooner.

    Raises:
        TopologyError: there is no such topology.
    """

    topology: Any = None
    engine: bool = False

    def __post_init__(self) -> None:
        from pycollective.schedule.language import registry

        has = frozenset() if self.topology is None else frozenset(registry.info(self.topology).collectives)
        object.__setattr__(self, "_has", has)
        if self.topology is not None:
            object.__setattr__(self, "topology", registry.get(self.topology))

    def topology_for(self, collective: str) -> Any:
        """The topology to use for a collective; None for the default."""
        return self.topology if collective in self._has else None  # type: ignore[attr-defined]

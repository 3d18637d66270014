"""What RayExecutor.create_settings returns."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pycollective.errors import BootstrapError


@dataclass
class MiniSettings:
    """Settings of a job on Ray.

    Attributes:
        timeout_s: seconds that init() waits for the other ranks.
        placement_group_timeout_s: seconds that Ray has to reserve resources, and again to start the workers.
        nics: names of the network interfaces that may be used between nodes; None: all.
        discovery: of elastic jobs with override_discovery=False: has find_available_hosts_and_slots().
    """

    timeout_s: float = 30
    placement_group_timeout_s: float = 100
    nics: Collection[str] | None = None
    discovery: Any = None

    def within_nics(self, host: Mapping[str, Any]) -> dict[str, Any]:
        """A host's description with these interfaces only.

        Raises:
            BootstrapError: it has none of them.
        """
        have = host["interfaces"]
        kept = {name: each for name, each in have.items() if not self.nics or name in self.nics}
        if not kept:
            raise BootstrapError(
                f"host {host['host']} has none of the network interfaces {', '.join(sorted(self.nics or ()))}; "
                f"it has {', '.join(have) or 'none'}"
            )
        return {**host, "interfaces": kept}

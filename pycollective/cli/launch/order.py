"""What a launcher tells the agent of a host: one line of JSON. Imports only the standard library."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class LaunchOrder:
    """The ranks of one host.

    Attributes:
        host: its name, for messages.
        environment: of the launcher, as far as it is forwarded.
        variables: of the job on this host; they replace others.
        size: of the whole job. first, count: the ranks of this host.
        tag, grace: as for one_host.run.
        folder: in which they run.
        worker: name of the only process, if it is a worker of an elastic job, which gets its rank later.
    """

    host: str
    command: list[str]
    environment: dict[str, str]
    variables: dict[str, str]
    size: int = 1
    first: int = 0
    count: int = 1
    tag: bool = False
    grace: float = 0.0
    folder: str = field(default_factory=os.getcwd)
    worker: str = ""

    def encode(self) -> bytes:
        """The line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> LaunchOrder:
        """The inverse of `encode`."""
        return LaunchOrder(**json.loads(line))

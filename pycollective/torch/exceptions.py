"""The exceptions that scripts written for Horovod catch."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed for good: a rank is gone, or has shut down. `elastic.run` recovers from it."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed. `elastic.run` starts anew from the current state.

    Attributes:
        skip_sync: whether the state need not be synchronised.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


class HorovodVersionMismatchError(ImportError):
    """Never raised here: nothing is built against one version of torch. It is here for scripts that name it."""

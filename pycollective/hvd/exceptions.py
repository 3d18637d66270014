"""The exceptions that Horovod scripts catch."""

from __future__ import annotations


class HorovodInternalError(RuntimeError):
    """A collective failed permanently: a rank was lost or has shut down. `elastic.run` recovers from it."""


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed. `elastic.run` restarts from the current state.

    Attributes:
        skip_sync: whether the state need not be synchronized.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the set of hosts has changed")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The message of HorovodVersionMismatchError."""
    return f"built with {name} {installed_version}, but {name} {version} is installed"


class HorovodVersionMismatchError(ImportError):
    """Never raised: pycollective is not built for a particular version of torch. Scripts name it in except clauses."""

    def __init__(self, name: str, version: str, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name, self.version, self.installed_version = name, version, installed_version

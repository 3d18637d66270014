"""Makes torch.compile skip this package's functions, as it skips torch's own.

Otherwise it would compile what C++ calls back within a compiled function (DistributedDataParallel calls methods of a
process group there, and a backward pass calls gradient hooks), and fail.
"""

from __future__ import annotations

from pycollective.torch.when_imported import when_imported


def leave_alone() -> None:
    """Register this package with torch.compile, now or once it is imported: its import takes longer than this one's."""
    when_imported("torch._dynamo.trace_rules", lambda rules: rules.add(__package__.partition(".")[0]))

"""`horovod.common.basics`: the basics as methods of an object."""

from __future__ import annotations

from pycollective.hvd.horovod_basics import HorovodBasics

__all__ = ["HorovodBasics"]

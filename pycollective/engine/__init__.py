"""The engine: named operations, submitted in any order on any rank, negotiated, fused and run in the background."""

from __future__ import annotations

from pycollective._core import Work
from pycollective.engine.engine import Engine
from pycollective.engine.operation import Item
from pycollective.engine.settings import Settings

__all__ = ["Engine", "Item", "Settings", "Work"]

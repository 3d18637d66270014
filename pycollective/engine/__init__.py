"""The engine: named operations, submitted in any order on any rank, agreed, fused and run behind the caller's back."""

from __future__ import annotations

from pycollective.engine.engine import Engine
from pycollective.engine.operation import Item, Work
from pycollective.engine.settings import Settings

__all__ = ["Engine", "Item", "Settings", "Work"]

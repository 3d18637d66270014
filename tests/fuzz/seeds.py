"""The amount of random cases and the seed from which they are drawn; `make fuzz` sets both."""

from __future__ import annotations

import os
import random

SEED = os.environ.get("PC_TEST_SEED", "1")
AMOUNT = int(os.environ.get("PC_TEST_AMOUNT", "1"))
"""Times as many cases as `make test` has."""


def seeds(count: int) -> list[str]:
    """Seeds of `count` cases, times the amount."""
    return [f"{SEED}.{number}" for number in range(count * AMOUNT)]


def choices(*parts: object) -> random.Random:
    """What a rank, or all ranks, draw in a case."""
    return random.Random(" ".join(map(str, parts)))

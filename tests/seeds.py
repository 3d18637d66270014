"""The amount of random cases and the seed from which they are drawn; `make fuzz` sets both."""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, settings

SEED = os.environ.get("PC_TEST_SEED", "1")
AMOUNT = int(os.environ.get("PC_TEST_AMOUNT", "1"))
"""Times as many cases as `make test` has."""


def load_profile() -> None:
    """Hypothesis's settings for all tests: always the same cases if no seed is set."""
    settings.register_profile(
        "seeds",
        deadline=None,
        derandomize="PC_TEST_SEED" not in os.environ,
        max_examples=100 * AMOUNT,
        print_blob=True,  # what repeats a failure
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("seeds")


def examples(count: int) -> settings:
    """Hypothesis's settings for `count` examples, times the amount."""
    return settings(max_examples=count * AMOUNT)


def seeds(count: int) -> list[str]:
    """Seeds of `count` cases, times the amount."""
    return [f"{SEED}.{number}" for number in range(count * AMOUNT)]


def choices(*parts: object) -> random.Random:
    """What a rank, or all ranks, draw in a case."""
    return random.Random(" ".join(map(str, parts)))

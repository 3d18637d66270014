"""`horovod.runner.common.util.env`, as far as Horovod's own tests import it."""

from __future__ import annotations

import os

_VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("PYCOLLECTIVE_RANK", "PYCOLLECTIVE_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, by the launcher's variables; (0, 1) without a launcher.

    Raises:
        RuntimeError: only one of a launcher's variables is set.
    """
    for names in _VARIABLES:
        found = [os.environ.get(name) for name in names]
        if None not in found:
            rank, size = map(int, filter(None, found))
            return rank, size
        if any(value is not None for value in found):
            raise RuntimeError(f"only one of {names[0]} and {names[1]} is set")
    return 0, 1

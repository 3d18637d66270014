"""Environments as set by launchers, and ranks that are threads of the test."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterable

from speed import deadline


def own_variables(rank: int, size: int, name: str) -> dict[str, str]:
    return {
        "PYCOLLECTIVE_RANK": str(rank),
        "PYCOLLECTIVE_SIZE": str(size),
        "PYCOLLECTIVE_LOCAL_RANK": str(rank),
        "PYCOLLECTIVE_LOCAL_SIZE": str(size),
        "PYCOLLECTIVE_RENDEZVOUS": name,
    }


def torchrun_variables(rank: int, size: int, **more: str) -> dict[str, str]:
    fixed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"2{os.getpid() % 10000}"}
    return fixed | {"RANK": str(rank), "WORLD_SIZE": str(size)} | more


def horovod_variables(rank: int, size: int, **more: str) -> dict[str, str]:
    meeting = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": f"3{os.getpid() % 10000}"}
    local = {"HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(size)}
    return {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)} | local | meeting | more


def on_threads(actions: list[Callable[[], object]], limit: float = 20) -> list[object]:
    """Runs each action on a separate thread; returns results, or the exceptions they raised."""
    results: list[object] = [None] * len(actions)

    def call(i: int) -> None:
        try:
            results[i] = actions[i]()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,), daemon=True) for i in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(deadline(limit))
        assert not thread.is_alive(), "a rank hangs"
    return results


def slurm_variables(rank: int, size: int, **others: str) -> dict[str, str]:
    numbers = {"SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": size, "SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0}
    return {name: str(number) for name, number in numbers.items()} | others


def fresh_name() -> str:
    return f"test/{os.getpid()}-{time.monotonic_ns()}"


def on_ranks(ranks: Iterable[int], act: Callable[[int], object]) -> list[object]:
    """Runs act(rank) for each rank, as on_threads does."""
    return on_threads([functools.partial(act, rank) for rank in ranks])

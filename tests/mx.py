"""Ranks with pycollective.mxnet initialized, as real processes.

Each loads MXNet, which takes seconds: tests are few, of many checks.

A body is a module-level function of a test file: `body(hvd, *arguments)` on every rank; `run` returns its results
in rank order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import processes


def run(n: int, body: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None) -> list[Any]:
    """Runs body(hvd, *arguments) on n processes, which may have run others; returns the results in rank order."""
    return processes.run(n, _enter, processes._place(body), arguments, env=_variables(env), reuse=True)


def job(n: int, body: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None) -> processes.Job:
    """Ranks that still run: for tests that communicate with ranks or kill them, through `hvd.link`."""
    return processes.Job(n, _enter, processes._place(body), arguments, env=_variables(env))


def _variables(env: dict[str, str] | None) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", "MXNET_CPU_WORKER_NTHREADS": "1", **(env or {})}


def _enter(comm: Any, link: Any, place: tuple[str, str], arguments: Any) -> Any:
    import pycollective.mxnet as hvd

    body = processes._load(*place)
    hvd.link = link  # type: ignore[attr-defined]
    hvd.init()
    value = body(hvd, *arguments)
    hvd.shutdown()
    return value

"""Ranks with pycollective.torch initialized, as real processes forked from a server that has torch loaded.

A body is a module-level function of a test file: `body(hvd, *arguments)` on every rank; `run` returns its results
in rank order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import processes
from c10d import torch_loaded


def run(n: int, body: Callable[..., Any], *arguments: Any, env: dict[str, str] | None = None, **init: Any) -> list[Any]:
    """Runs body(hvd, *arguments) on n processes; returns the results in rank order.

    Args:
        env: environment variables of the ranks.
        init: arguments of hvd.init().
    """
    with job(n, body, *arguments, env=env, **init) as started:
        return started.results(60)


@contextmanager
def job(
    n: int,
    body: Callable[..., Any],
    *arguments: Any,
    env: dict[str, str] | None = None,
    leave: str = "free",
    **init: Any,
) -> Iterator[processes.Job]:
    """Ranks that still run: for tests that communicate with ranks or kill them, through `hvd.link`."""
    where = {"file": body.__code__.co_filename, "name": body.__qualname__}
    with torch_loaded(), processes.Job(n, _enter, where, init, arguments, env=env, leave=leave) as started:
        yield started


def _enter(comm: Any, link: Any, where: dict[str, str], init: dict[str, Any], arguments: Any) -> Any:
    import torch

    import pycollective.torch as hvd

    torch.set_num_threads(1)
    body = processes._load(where["file"], where["name"])
    hvd.link = link  # type: ignore[attr-defined]
    hvd.init(**init)
    value = body(hvd, *arguments)
    hvd.shutdown()
    return value

"""Ranks with pycollective.torch initialized, as real processes forked from a server that has torch loaded.

A body is a module-level function of a test file: `body(hvd, *arguments)` on every rank; `run` returns its results
in rank order. A test that is only a body is marked with `@with_ranks(2, 3)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import processes
from bodies import run_by
from c10d import begin_anew, torch_loaded


def run(
    n: int,
    body: Callable[..., Any],
    *arguments: Any,
    env: dict[str, str] | None = None,
    reuse: bool = True,
    **init: Any,
) -> list[Any]:
    """Runs body(hvd, *arguments) on n processes; returns the results in rank order.

    Args:
        env: environment variables of the ranks.
        reuse: as for processes.run.
        init: arguments of hvd.init().
    """
    with torch_loaded():
        return processes.run(n, _enter, processes._place(body), init, arguments, env=env, reuse=reuse)


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
    place = processes._place(body)
    with torch_loaded(), processes.Job(n, _enter, place, init, arguments, env=env, leave=leave) as started:
        yield started


def _enter(comm: Any, link: Any, place: tuple[str, str], init: dict[str, Any], arguments: Any) -> Any:
    import pycollective.torch as hvd

    begin_anew()
    body = inspect.unwrap(processes._load(*place))
    hvd.link = link  # type: ignore[attr-defined]
    hvd.init(**init)
    value = body(hvd, *arguments)
    hvd.shutdown()
    return value


def with_ranks(*sizes: int, **options: Any) -> Callable[[Callable[..., None]], Any]:
    """Makes `def test_this(hvd)` a test which every rank runs: see bodies.run_by; options: of `run`."""
    return run_by(lambda n, body, given: run(n, body, *given.values(), **options), *sizes)

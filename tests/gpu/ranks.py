"""Tests as functions of a rank that is a process with the (emulated) extension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import processes
import pytest
from bodies import Body, run_by
from speed import until

from gpu import emulation
from pycollective import Error


def on_processes(*sizes: int, env: dict[str, str] | None = None) -> Callable[[Body], Any]:
    """Make a test of a function that each of n processes calls with its communicator and the test's parameters."""

    def run(n: int, body: Body, parameters: dict[str, Any]) -> None:
        processes.run(n, _rank, processes._place(body), parameters, env=env)

    return run_by(run, *sizes)


def _rank(comm: Any, link: Any, place: tuple[str, str], parameters: dict[str, Any]) -> None:
    emulation.install()
    processes._load(*place).__wrapped__(comm, **parameters)  # type: ignore[attr-defined]


def until_it_raises(comm: Any) -> Error:
    """The communicator's error, while calls of this rank are still in flight."""
    with pytest.raises(Error) as raised:
        until(comm.check)
    return raised.value

"""Tests as functions of a rank: of a process with the (emulated) extension, or of a thread of this process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import c10d
import processes
import pytest

import pycollective as pc
from gpu import emulation

Body = Callable[..., None]


def on_processes(*sizes: int, env: dict[str, str] | None = None) -> Callable[[Body], Body]:
    """Make a test of a function that each of n processes calls with its communicator and the test's parameters."""

    def run(body: Body, n: int, parameters: dict[str, Any]) -> None:
        processes.run(n, _rank, processes._place(body), parameters, env=env)

    return lambda body: _test_of(body, sizes, run)


def on_threads(*sizes: int, **options: Any) -> Callable[[Body], Body]:
    """Make a test of a function that each rank of pc.local_world(n, **options) calls; the test may have fixtures."""

    def run(body: Body, n: int, parameters: dict[str, Any]) -> None:
        pc.local_world(n, **options).run(lambda comm: body(comm, **parameters))

    return lambda body: _test_of(body, sizes, run)


def on_worlds(*sizes: int, **options: Any) -> Callable[[Body], Body]:
    """Make a test of a function that n processes call with their torch.distributed process groups: see c10d.run."""

    def run(body: Body, n: int, parameters: dict[str, Any]) -> None:
        c10d.run(n, _world, processes._place(body), **options)

    return lambda body: _test_of(body, sizes, run)


def _test_of(body: Body, sizes: tuple[int, ...], run: Callable[[Body, int, dict[str, Any]], None]) -> Body:
    @functools.wraps(body)
    def test(n: int, **parameters: Any) -> None:
        run(body, n, parameters)

    number = inspect.Parameter("n", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    _, *parameters = inspect.signature(body).parameters.values()
    test.__signature__ = inspect.Signature([number, *parameters])  # type: ignore[attr-defined]
    return pytest.mark.parametrize("n", sizes)(test)


def _rank(comm: Any, link: Any, place: tuple[str, str], parameters: dict[str, Any]) -> None:
    emulation.install()
    processes._load(*place).__wrapped__(comm, **parameters)  # type: ignore[attr-defined]


def _world(world: c10d.World, place: tuple[str, str]) -> None:
    processes._load(*place).__wrapped__(world)  # type: ignore[attr-defined]

"""Makes a function of a rank a test, which runs it on every rank."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

Body = Callable[..., Any]
Run = Callable[[int, Body, dict[str, Any]], object]


def run_by(run: Run, *sizes: int) -> Callable[[Body], Any]:
    """A decorator: for each number of ranks the test calls run(n, body, parameters).

    The body's first parameter is what the ranks are given, the others are the test's. Without sizes the number is the
    test's parameter `n`, which the body may have too, or its `hosts` tell it, and n is 0.
    """

    def decorate(body: Body) -> Any:
        _, *parameters = inspect.signature(body).parameters.values()
        known = {parameter.name for parameter in parameters}
        if len(sizes) != 1 and not known & {"n", "hosts"}:
            parameters.append(inspect.Parameter("n", inspect.Parameter.KEYWORD_ONLY))
        signature = inspect.Signature(parameters)

        @functools.wraps(body)
        def test(*args: Any, **options: Any) -> None:
            bound = signature.bind(*args, **options)
            given = dict(zip(signature.parameters, bound.args, strict=False)) | bound.kwargs
            n = given["n"] if "n" in known else given.pop("n", sizes[0] if sizes else 0)
            run(n, body, given)

        test.__signature__ = signature  # type: ignore[attr-defined]
        return pytest.mark.parametrize("n", sizes)(test) if len(sizes) > 1 else test

    return decorate

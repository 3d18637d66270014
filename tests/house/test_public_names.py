"""Every public name can be called as help() shows: a signature, a docstring, and an entry in the reference."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import pycollective
import surface

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
NAMES = [name for module in surface.MODULES for name in surface.public(module)]


def test_the_walk_finds_what_there_is() -> None:
    found = {name.full for name in NAMES}
    assert found >= {
        *("pycollective.allreduce", "pycollective.Communicator.iallgatherv", "pycollective.Handle.result"),
        *("pycollective.LocalWorld.run", "pycollective.schedule.simulate", "pycollective.schedule.Simulation.busbw"),
        *("pycollective.optim.DistributedSGD.step", "pycollective.from_mpi", "pycollective.typing.Array"),
    }


@pytest.mark.parametrize("name", [name for name in NAMES if name.kind != "constant"], ids=lambda name: name.full)
def test_it_is_documented(name: surface.Name) -> None:
    assert name.doc, "no docstring"
    if not name.callable:
        return
    parameters = name.signature().parameters.values()
    unnamed = [p.name for p in parameters if not re.search(rf"\b{p.name}\b", name.doc)]
    assert not unnamed, f"not in the docstring: {unnamed}"
    if name.module == "pycollective" and name.kind == "function":
        assert not any(p.kind is p.VAR_KEYWORD for p in parameters), "**options do not show what there is"
        returned = name.signature().return_annotation
        assert not parameters or "Args:" in name.doc
        assert not parameters or returned in (None, "None", inspect.Signature.empty) or "Returns:" in name.doc


def test_it_is_in_the_reference() -> None:
    text = REFERENCE.read_text()
    missing = [name.full for name in NAMES if not re.search(rf"^ *- `{re.escape(name.path)}[`(]", text, re.MULTILINE)]
    assert not missing, "run `make docs` and commit docs/reference.md"


@pytest.mark.parametrize("name", [n for n in pycollective.__all__ if hasattr(pycollective.Communicator, n)])
def test_functions_are_the_methods_without_self(name: str) -> None:
    method, function = getattr(pycollective.Communicator, name), getattr(pycollective, name)
    own = list(inspect.signature(method).parameters.values())[1:]
    assert [p.replace(annotation=p.empty) for p in own] == [
        p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()
    ]
    assert function.__doc__.startswith(method.__doc__) and function.__module__ == "pycollective"


def test_everything_comes_by_a_star_and_is_listed() -> None:
    space: dict[str, object] = {}
    exec("from pycollective import *", space)
    assert set(pycollective.__all__) <= set(space) and set(pycollective.__all__) <= set(dir(pycollective))
    assert len(set(pycollective.__all__)) == len(pycollective.__all__)

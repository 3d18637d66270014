"""Any call to `pycollective._core` returns or raises: no signal, no hang.

PC_TEST_PRIVATE_CALLS sets the number of calls, PC_TEST_SEED the seed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from seeds import SEED

from fuzz.random_driver import run_blocks
from fuzz.random_private_calls import CALLS, UNCHECKED, targets
from pycollective import _core

TOTAL = int(os.environ.get("PC_TEST_PRIVATE_CALLS", "2000"))
PROCESSES = 2


@pytest.mark.fuzz
@pytest.mark.timeout(60 + TOTAL // 20)
def test_no_call_ends_the_process(tmp_path: Path) -> None:
    share = -(-TOTAL // CALLS // PROCESSES)
    arguments = {f"{SEED}.{part}": share for part in range(PROCESSES)}
    found = run_blocks("fuzz.random_private_calls", arguments, tmp_path, {"PYCOLLECTIVE_TIMEOUT": "0.05"})
    assert not found, f"{len(found)} of {TOTAL} calls:\n" + "\n".join(found)


def test_unchecked_functions_are_documented() -> None:
    known = dict(targets())
    for name in UNCHECKED:
        assert "unchecked" in known[name].__doc__
    documented = {name for name, function in known.items() if "unchecked" in (getattr(function, "__doc__", None) or "")}
    assert documented == UNCHECKED


def test_an_object_that_was_not_initialised_is_refused() -> None:
    for name, kind in vars(_core).items():
        if isinstance(kind, type):
            try:
                empty = kind.__new__(kind)
            except TypeError:  # of Python's C interface: none can be made without its contents
                assert kind is _core.Handle
                continue
            for word, member in vars(kind).items():
                if isinstance(member, property):
                    with pytest.raises(TypeError, match=f"{name}.*__init__"):
                        getattr(empty, word)

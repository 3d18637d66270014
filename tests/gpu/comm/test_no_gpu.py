"""Without a GPU path, everything that needs one raises with the same reason."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pycollective as pc
from pycollective.cli.main import app
from pycollective.comm.cuda import runtime
from pycollective.comm.cuda.virtual import VirtualWorld


class OnGpu:
    """Claims to be in GPU memory, which is never accessed."""

    shape = (3,)
    __cuda_array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012


CALLS: dict[str, Callable[[], Any]] = {
    "allreduce": lambda: pc.init().allreduce(OnGpu()),
    "out": lambda: pc.init().allreduce(np.ones(3, np.float32), out=OnGpu()),
    "nonblocking": lambda: pc.init().ibroadcast(OnGpu()),
    "nccl": lambda: pc.init().allreduce(OnGpu(), topology="nccl"),
    "empty": lambda: pc.init().empty(3, device="cuda"),
    "local_world": lambda: pc.local_world(2, device="cuda").run(lambda comm: comm.rank),
    "virtual world": lambda: VirtualWorld(2),
}


@pytest.fixture(autouse=True)
def _no_world_remains() -> Iterator[None]:
    yield
    pc.shutdown()


@pytest.fixture
def reason() -> str:
    found = runtime.why_not()
    if found is None:
        pytest.skip("there is a GPU here")
    return found


@pytest.mark.parametrize("name", CALLS)
def test_calls_say_why(name: str, reason: str) -> None:
    with pytest.raises(pc.CommunicatorError) as caught:
        CALLS[name]()
    assert str(caught.value).startswith("no GPU path: ") and reason in str(caught.value)


def test_doctor_says_why(reason: str) -> None:
    shown = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "300"}).output
    assert " ".join(reason.split()[:6]) in " ".join(shown.split())


def test_a_package_without_its_gpu_side_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycollective._cuda", None)
    with pytest.raises(pc.CommunicatorError, match=r"no GPU path: pycollective was installed without .*nvcc"):
        pc.init().empty(3, device="cuda")

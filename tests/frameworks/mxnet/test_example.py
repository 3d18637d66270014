"""The example as a reader would run it: it learns, and launchers, fusion and the name `horovod` do not change bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from launch import find_mpirun, launch

pytest.importorskip("mxnet")
EXAMPLE = Path(__file__).parents[3] / "examples" / "gluon_digits.py"


def _digits(n: int, launcher: str, script: Any = EXAMPLE, **options: Any) -> tuple[float, str]:
    """(accuracy, digest) of a run."""
    ran = launch(n, script, "--epochs", 4, launcher=launcher, timeout=100, **options).check()
    assert ran.outputs[1:] == [""] * (n - 1)
    found = re.fullmatch(rf"accuracy (\d\.\d{{4}})  digest ([0-9a-f]{{16}})  ranks {n}\n", ran.outputs[0])
    assert found, ran.report()
    return float(found[1]), found[2]


def test_it_learns_and_the_launcher_does_not_change_bits(tmp_path: Path) -> None:
    accuracy, digest = _digits(2, "pycollective", env={"HOROVOD_FUSION_THRESHOLD": "0"})
    assert accuracy >= 0.9
    if find_mpirun() is not None:
        script = tmp_path / "horovod_digits.py"
        script.write_text(EXAMPLE.read_text().replace("pycollective.mxnet", "horovod.mxnet"))
        assert _digits(2, "mpirun", script, through="pycollective.horovod") == (accuracy, digest)

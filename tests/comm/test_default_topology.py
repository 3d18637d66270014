"""PYCOLLECTIVE_TOPOLOGY: the topology of calls that do not name one."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch import launch

FILE = """
from pycollective.schedule import topology

@topology("pairs", ranks=2)
class Pairs:
    def allreduce(self, p):
        for c in p.chunks(1):
            p[p.ranks, c] = p.sum(p[q, c] for q in p.ranks)
"""


def work() -> None:
    import numpy as np

    import pycollective

    comm = pycollective.init()
    total = comm.allreduce(np.full(4, comm.rank + 1.0))
    used = [comm.explain(name, 8).topology for name in ("allreduce", "broadcast", "alltoall", "barrier")]
    asked = comm.explain("allreduce", 8, topology="ring")
    comm.barrier()
    print(total.sum(), *used, asked.topology, comm.explain("allreduce", 8).reason)


@pytest.mark.parametrize(
    ("setting", "used"),
    [("pairs.py:pairs", "pairs direct direct direct"), ("tree", "tree tree direct direct"), ("", "direct " * 4)],
)
def test_calls_without_a_topology_use_it_if_it_has_the_collective(setting: str, used: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(FILE)
    value = str(tmp_path / setting) if ".py" in setting else setting
    done = launch(2, work, env={"PYCOLLECTIVE_TOPOLOGY": value}, check=True)
    for text in done:
        assert text.startswith(f"12.0 {used.strip()} ring "), text
        assert ("PYCOLLECTIVE_TOPOLOGY names it" in text) == bool(setting)


@pytest.mark.parametrize(
    ("setting", "words"),
    [("tere", "PYCOLLECTIVE_TOPOLOGY: no topology is called 'tere'; did you mean tree"),
     ("none.py:x", "PYCOLLECTIVE_TOPOLOGY: 'none.py:x': there is no file none.py"),
     ("pairs.py:pairs", "pairs takes 2 ranks, not 1; the nearest supported: 2")],
)  # fmt: skip
def test_an_invalid_setting_is_reported_by_the_call(setting: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "pairs.py").write_text(FILE)
    value = str(tmp_path / setting) if setting.startswith("pairs") else setting
    done = launch(1, work, launcher="alone", env={"PYCOLLECTIVE_TOPOLOGY": value})
    assert done.returncode == 1
    assert f"TopologyError: {words}" in done.stderr

"""Elastic jobs on hosts that are network namespaces: one is cut off, and another one takes its place."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hosts.namespaces import make_hosts
from speed import until

from launch import CLI
from pycollective.bench.namespaces import ENTER

CODE = """
import json, os, socket, time
from pycollective.hvd import basics as hvd
from pycollective.hvd.elastic.running import run
from pycollective.hvd.elastic.state import ObjectState
from pycollective.hvd.objects import allgather_object

hvd.init()
state = ObjectState(step=0, hosts=[])

@run
def train(state):
    while state.step < 20 or "host2" not in state.hosts[-1]:
        state.hosts.append(allgather_object(socket.gethostname(), name=f"step {state.step}"))
        state.step += 1
        if hvd.rank() == 0:
            open("step", "w").write(str(state.step))
        time.sleep(0.02)
        state.commit()

train(state)
if hvd.rank() == 0:
    open("result", "w").write(json.dumps([state.step, len(state.hosts), state.hosts[0], state.hosts[-1]]))
"""


def has_begun(launcher: subprocess.Popen[str]) -> bool:
    assert launcher.poll() is None
    return Path("step").exists() and Path("step").read_text().isdecimal()


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_a_host_vanishes_and_another_one_takes_its_place(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    Path("program.py").write_text(CODE)
    Path("listed").write_text("host0:1\nhost1:1\n")
    words = [*CLI, "run", "-np", "2", "--rsh", ENTER, "--host-discovery-script", "cat listed", "program.py"]
    with make_hosts(3) as hosts:
        launcher = hosts.popen("host0", words, stderr=subprocess.PIPE, text=True)
        until(lambda: has_begun(launcher), 30)
        Path("listed").write_text("host0:1\nhost2:1\n")
        hosts.cut("host1") if fault == "cut" else hosts.kill("host1")
        _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, errors
    steps, counted, first, last = json.loads(Path("result").read_text())
    assert steps == counted and first == ["host0", "host1"] and last == ["host0", "host2"]

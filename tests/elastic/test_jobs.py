"""Elastic jobs of processes: `pycollective run` and horovodrun's options; hosts are other names of this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import alive
from speed import until

from launch import CLI
from pycollective.cli.launch import elastic
from pycollective.elastic import FixedHosts, Limits

pytestmark = pytest.mark.usefixtures("elsewhere")
PRELUDE = """
import json, os, signal, sys, time
host, pid = os.environ.get("HOROVOD_HOSTNAME"), os.getpid()
def write(name, text):
    open(f"{name}.{pid}", "w").write(text)
    os.rename(f"{name}.{pid}", name)
"""


def run(code: str, hosts: str, *options: str, launcher: tuple[str, ...] = (*CLI, "run"), argument: str = "") -> Any:
    Path("program.py").write_text(PRELUDE + code)
    Path("hosts").write_text(hosts)
    words = [*launcher, *options, "--host-discovery-script", "cat hosts", "program.py", argument]
    return subprocess.run(words, capture_output=True, text=True, timeout=80)


TORCH = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank() if os.environ["PYCOLLECTIVE_ELASTIC_WORKER"] < "2" else 99)
model = torch.nn.Linear(3, 2).double()
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

@hvd.elastic.run
def train(state):
    while state.step < 10 or not state.changed:
        if state.step == 3 and hvd.rank() == 0:
            write("hosts", "a:1\\nc:1\\n")
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(state.step), dtype=torch.float64)
        optimizer.zero_grad()
        (model(x[hvd.rank()::hvd.size()]) ** 2).mean().backward()
        optimizer.step()
        state.step += 1
        state.changed = hvd.size() == 2 and state.step > 3 and bool(hvd.allreduce(torch.tensor(float(host == "c"))))
        time.sleep(0.05)
        state.commit()

state = hvd.elastic.TorchState(model, optimizer, step=0, changed=False)
train(state)
everyone = hvd.allgather_object((host, [p.tolist() for p in model.parameters()], state.step))
if hvd.rank() == 0:
    write("result", json.dumps(everyone))
"""


@pytest.mark.torch
def test_horovodrun_replaces_a_removed_host() -> None:
    torch = pytest.importorskip("torch")
    launcher = (sys.executable, "-m", "pycollective.horovod")
    done = run(TORCH, "a:1\nb:1\n", "-np", "2", "--min-np", "1", "--ssh-port", "22", launcher=launcher)
    assert done.returncode == 0, done.stderr
    (first, weights, steps), (second, others, _) = json.loads(Path("result").read_text())
    assert (first, second) == ("a", "c") and weights == others
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(steps):
        x = torch.randn(6, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
    for mine, right in zip(weights, model.parameters(), strict=True):
        assert torch.allclose(torch.tensor(mine, dtype=torch.float64), right.detach(), rtol=1e-12, atol=1e-12)


DIES_IN_INIT = """
from pycollective.comm import world
from pycollective.comm.bootstrap import nodes

if os.environ["PYCOLLECTIVE_ELASTIC_WORKER"] == "1":
    def connect(found):
        if sys.argv[1] == "later":
            nodes.discover(found)
        os._exit(5)
    world.connect = connect
comm = world.init()
write(f"{host}-{os.environ['LOCAL_RANK']}", str(comm.allreduce(comm.rank + 1)))
"""


@pytest.mark.parametrize("when", ["at once", "later"])
@pytest.mark.parametrize("hosts", ["a:1\nb:1\n", "a:2\n"])
def test_a_worker_lost_during_init_is_replaced(hosts: str, when: str) -> None:
    done = run(DIES_IN_INIT, hosts, "-np", "2", argument=when)
    assert done.returncode == 0, done.stderr
    assert "ended with code 5" in done.stderr and "generation 2: 2 workers" in done.stderr
    second = "b-0" if "b" in hosts else "a-1"
    assert [Path(name).read_text() for name in ("a-0", second)] == ["3", "3"]


def test_workers_end_when_the_driver_is_killed() -> None:
    code = PRELUDE + "write(f'pid-{host}', str(pid))\nimport pycollective\npycollective.init()\ntime.sleep(60)"
    Path("program.py").write_text(code)
    words = [*CLI, "run", "-np", "2", "--host-discovery-script", "echo a:1; echo b:1", "program.py"]
    launcher = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        assert "generation 1: 2 workers on a:1, b:1" in launcher.stderr.readline()
        pids = [int(Path(f"pid-{host}").read_text()) for host in "ab"]
    finally:
        launcher.kill()
        launcher.communicate()
    until(lambda: not any(alive(pid) for pid in pids))  # no worker outlives its driver


def test_a_program_that_fails_at_once_ends_the_job() -> None:
    done = run("import sys; sys.exit(3)", "a:1\nb:1\n", "-np", "2", "--min-np", "1")
    assert done.returncode == 3
    assert "host a gets no new workers" in done.stderr and "host b gets no new workers" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("workers have failed on all hosts")


def test_settings_of_an_elastic_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown one is reported once, by the launcher; --interface reaches the workers."""
    monkeypatch.setenv("PYCOLLECTIVE_TIMOUT", "3")
    code = """
import pycollective
assert pycollective.init().size == 2 and os.environ['PYCOLLECTIVE_INTERFACE'] == '127.0.0.1'
"""
    done = run(code, "a:1\nb:1\n", "-np", "2", "--interface", "127.0.0.1")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "PYCOLLECTIVE_TIMOUT" in line]
    assert len(lines) == 1 and lines[0].endswith("did you mean PYCOLLECTIVE_TIMEOUT?"), done.stderr


def test_a_host_that_does_not_answer_gets_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "START_SECONDS", 0.3)
    logged: list[str] = []
    monkeypatch.setattr(elastic, "log", logged.append)
    limits = Limits(1, timeout=20)
    driver = elastic.make_driver(["true"], FixedHosts({"a": 1}), limits, shell=["sh", "-c", "exec sleep 60"])
    assert driver.run() != 0
    assert logged[0].startswith("host a: no answer within 0 s (tried: sh -c 'exec sleep 60' a "), logged


def test_a_job_of_which_all_fail_begins_again_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYCOLLECTIVE_ELASTIC_FILE", "commits")
    code = """
import pycollective
pycollective.init()
count = len(open('commits').read()) if os.path.exists('commits') else 0
write('commits', 'x' * (count + 1))
sys.exit(0 if count == 1 else 6)
"""
    done = run(code, "a:1", "-np", "1")
    assert done.returncode == 0 and "beginning again from the stored commit" in done.stderr, done.stderr


def test_signals_reach_the_workers() -> None:
    code = "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))\nwrite('ready', '')\ntime.sleep(60)"
    Path("program.py").write_text(PRELUDE + code)
    words = [*CLI, "run", "-np", "1", "--min-np", "1", "program.py"]  # on this host
    launcher = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    until(Path("ready").exists)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(20) == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-np", "2", "--max-np", "4"], "--max-np is for elastic jobs"),
        (["-np", "2", "--min-np", "1", "--slots-per-host", "1"], "--slots-per-host needs --host-discovery-script"),
        (["-np", "2", "--min-np", "3"], "each must be at most the next"),
        (["-np", "2", "--min-np", "1", "--bind"], "--bind and --grace do not apply"),
        (["-np", "2", "-H", "a:2", "--host-discovery-script", "x"], "replaces -H"),
        (["-np", "1", "--host-discovery-script", "echo ''' a b '''"], "not of the form host:slots"),
        (["-np", "1", "--min-np", "1", "-H", "a", "--rsh", "false"], "the agent ended with code 1 before it reported"),
    ],
)
def test_what_cannot_work_is_refused(options: list[str], message: str) -> None:
    done = subprocess.run([*CLI, "run", *options, "x.py"], capture_output=True, text=True, timeout=30)
    assert done.returncode in (1, 2) and message in done.stderr, done.stderr

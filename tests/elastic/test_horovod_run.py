"""`horovod.run` on other hosts, static and elastic; hosts are other names of this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("elsewhere")
pytest.importorskip("cloudpickle")


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A script that imports `horovod`."""
    Path("program.py").write_text(code)
    words = [sys.executable, "-W", "error", "-m", "pycollective.horovod", "program.py"]
    return subprocess.run(words, capture_output=True, text=True, timeout=80)


ELASTIC = """
import json, os, signal, sys, time
import horovod

STEPS = 8


def train(rate):
    from pycollective.hvd import basics as hvd
    from pycollective.hvd.elastic.running import run
    from pycollective.hvd.elastic.state import ObjectState
    from pycollective.hvd.objects import allgather_object

    host = os.environ["HOROVOD_HOSTNAME"]
    hvd.init()
    state = ObjectState(step=0, weight=0, sizes=[])

    @run
    def steps(state):
        while state.step < STEPS:
            if state.step == 3 and host == "b":
                if hvd.local_rank() == 0:
                    with open("new", "w") as file:
                        file.write("a:1\\nc\\n")
                    os.rename("new", "hosts")
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGKILL)
            share = sum(rate * (state.weight + row) % 13 for row in range(12)[hvd.rank()::hvd.size()])
            state.weight += sum(allgather_object(share, name=f"step {state.step}"))
            state.step += 1
            state.sizes.append(hvd.size())
            if state.step % 2 == 0:
                state.commit()

    steps(state)
    print("trained on", host, flush=True)
    return hvd.rank(), host, state.sizes, state.weight


if __name__ == "__main__":
    words = {"min_num_proc": 2, "slots": 2, "reset_limit": 3, "cooldown_range": (1, 2), "elastic_timeout": 30}
    results = horovod.run(train, (7,), num_proc=3, max_num_proc=3, host_discovery_script="cat hosts", **words)
    print(json.dumps(results))
"""


def test_an_elastic_job_returns_the_results_of_its_last_ranks() -> None:
    """A host with two workers is lost, and another one takes its place: all go on from the last commit."""
    Path("hosts").write_text("a:1\nb\n")
    weight = 0
    for _ in range(8):
        weight += sum(7 * (weight + row) % 13 for row in range(12))
    done = run(ELASTIC)
    assert done.returncode == 0, done.stderr
    *printed, results = done.stdout.splitlines()
    hosts = ["a", "c", "c"]
    assert json.loads(results) == [[rank, host, [3] * 8, weight] for rank, host in enumerate(hosts)]
    assert sorted(printed) == [f"trained on {host}" for host in hosts]


ON_HOSTS = """
import os, sys
import horovod

def where(size):
    if size < 0 and os.environ["PYCOLLECTIVE_HOST"] == "b":
        sys.exit(-size)
    return os.environ["PYCOLLECTIVE_HOST"], os.environ.get("PYCOLLECTIVE_RANK"), bytes(max(size, 0))

if __name__ == "__main__":
    for size in (3 << 20, -5, 0):
        try:
            for host, rank, data in horovod.run(where, (size,), num_proc=2, hosts="a:1,b:4", ssh_port=22):
                print(host, rank, len(data))
        except RuntimeError as error:
            print(str(error).partition(";")[0])
"""


def test_a_static_job_on_other_hosts() -> None:
    """Results longer than a message; functions that never call init(); and a rank that fails, which is not replaced."""
    done = run(ON_HOSTS)
    lines = ["a None 3145728", "b None 3145728", "horovod.run: worker 1 (host b) ended with code 5"]
    lines += ["a None 0", "b None 0"]
    assert (done.stdout.splitlines(), done.returncode) == (lines, 0), done.stderr

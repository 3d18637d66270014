"""Cells in a real kernel. Run by `make notebook`: the other tests do not require the kernel."""

from __future__ import annotations

import re
import shlex
import sys

import pytest

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

SECONDS = 60
TOPOLOGY = """\
import pycollective as pc
from pycollective.schedule import Program, topology, verify_topology

@topology("gather_and_scatter", order="rank", replace=True)
class Mine:
    def allreduce(self, p):
        for c in p.chunks(1):
            p[0, c] = p.sum(p[q, c] for q in {ranks})
            p[{destinations}, c] = p[0, c]
"""


class Kernel:
    """A kernel in an empty folder."""

    def __init__(self, folder):
        self.manager, self.client = manager.start_new_kernel(kernel_name="python3", cwd=str(folder))

    def stop(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def run(self, code, at_output=None):
        """The reply to a cell, and its outputs as (type, text). At the first output `at_output` is called."""
        outputs = []

        def take(message):
            nonlocal at_output
            content = message["content"]
            if message["msg_type"] in ("stream", "display_data", "execute_result"):
                outputs.append((message["msg_type"], content.get("text") or content["data"]["text/plain"]))
                if at_output is not None:
                    at_output()
                    at_output = None

        reply = self.client.execute_interactive(code, timeout=SECONDS, output_hook=take)
        return reply["content"], outputs


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("kernel"))
    yield started
    started.stop()


WAITS = """
import threading
import time
import numpy as np
import pycollective as pc

def work(comm):
    if comm.rank == 0:
        comm.barrier()  # which rank 1 does not call
    else:
        print("waiting", flush=True)
        while True:
            time.sleep(0.01)

pc.local_world(2).run(work)
"""
AFTER = """
found = pc.local_world(2).run(lambda comm: comm.allreduce(np.ones(3)).tolist())
print(found, [thread.name for thread in threading.enumerate() if thread.name.startswith("rank-")])
"""


def test_after_an_interrupted_cell_the_next_one_works(kernel):
    reply, _ = kernel.run(WAITS, at_output=kernel.manager.interrupt_kernel)
    assert reply["status"] == "error" and reply["ename"] == "KeyboardInterrupt"
    reply, outputs = kernel.run(AFTER)
    assert reply["status"] == "ok", reply
    assert outputs == [("stream", "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]] []\n")]


def test_a_topology_of_a_cell_is_verified_and_run(kernel):
    reply, outputs = kernel.run(
        TOPOLOGY.format(ranks="p.ranks", destinations="p.ranks")
        + "import numpy as np\nprint(len(list(verify_topology(Mine, [3]))))\n"
        + "pc.local_world(3).run(lambda comm: float(comm.allreduce(np.ones(1), topology=Mine)[0]))"
    )
    assert reply["status"] == "ok", reply
    assert outputs == [("stream", "5\n"), ("execute_result", "[3.0, 3.0, 3.0]")]


def test_errors_name_the_cell_and_show_the_statement(kernel):
    verified = "list(verify_topology(Mine, [3]))"
    reply, _ = kernel.run(TOPOLOGY.format(ranks="p.ranks[1:]", destinations="p.ranks") + verified)
    assert reply["ename"] == "VerificationError"
    cell = rf"Cell In\[{reply['execution_count']}\]"
    assert re.search(rf"\[{cell}, line 8: p\[0, c\] = p\.sum\(.*\)\]$", reply["evalue"])
    reply, _ = kernel.run(TOPOLOGY.format(ranks="p.ranks", destinations="'all'") + verified)
    assert reply["ename"] == "ProgramError"
    assert re.match(rf"Cell In\[{reply['execution_count']}\], line 9: p\['all', 0\]", reply["evalue"])


def test_a_bench_in_a_cell_prints_its_table_once(kernel):
    words = "bench ring direct --ranks 2 --sizes 1K,4K --paths windows --peers none --quick"
    shell = f"!{shlex.quote(sys.executable)} -m pycollective {words}"
    inside = f"from pycollective.cli.main import app\napp({words.split()!r}, standalone_mode=False)"
    for cell in (shell, inside):
        reply, outputs = kernel.run(cell)
        assert reply["status"] == "ok", reply
        text = "".join(text for _, text in outputs)
        assert text.count("busbw") == 1 and "no wrong elements" in text, text
        assert not re.search(r"\x1b\[\d*[A-HJK]", text), "moves the cursor"

"""`import pycollective` is light: it defines names and pulls in nothing that a user did not ask for."""

from __future__ import annotations

import json
import sys
import tempfile

from launch import run_command

HEAVY = {"numpy", "ml_dtypes", "mpi4py", "matplotlib", "numba", "rich", "typer", "sklearn", "scipy"}
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "mxnet"}


def modules_after(code: str, *options: str) -> set[str]:
    """The modules that a fresh interpreter, started with `options`, has loaded after `code`."""
    script = f"""
import sys, json
{code}
print(json.dumps(sorted(sys.modules)))
"""
    with tempfile.TemporaryDirectory() as elsewhere:  # not the source tree
        return set(json.loads(run_command(sys.executable, *options, "-c", script, cwd=elsewhere).stdout))


def heavy_in(code: str) -> set[str]:
    """Which of HEAVY a fresh interpreter has loaded after `code`."""
    return {name.partition(".")[0] for name in modules_after(code)} & (HEAVY | FRAMEWORKS | {"ray"})


def test_import_loads_nothing_heavy() -> None:
    assert heavy_in("import numpy") == {"numpy"}, "which the probe sees"
    assert heavy_in("import pycollective") == set()


def test_the_compiler_needs_no_numpy_and_loads_topologies_when_one_is_named() -> None:
    loaded = modules_after("import pycollective.schedule")
    assert not [name for name in loaded if name.startswith("pycollective.topologies")]
    assert heavy_in("import pycollective.schedule; pycollective.schedule.names()") == set()


def test_bootstrap_and_launcher_need_nothing_heavy() -> None:
    modules = ("comm.bootstrap.detection", "comm.bootstrap.nodes", "cli.launch.one_host")
    assert heavy_in("import " + ", ".join(f"pycollective.{name}" for name in modules)) == set()


def test_what_frameworks_share_of_horovod_needs_none_of_them() -> None:
    modules = ("arguments", "basics", "built", "handles", "horovod_basics", "objects", "operations", "elastic.running")
    code = "import " + ", ".join(f"pycollective.hvd.{name}" for name in modules)
    assert not heavy_in(code) & FRAMEWORKS


def test_init_does_not_load_the_compiler() -> None:
    """Many ranks start at the same time: what only a first call or a compilation needs is loaded later."""
    loaded = modules_after("import pycollective; pycollective.init()")
    late = ("schedule.compiler", "schedule.verifier", "schedule.simulator", "schedule.drawing", "schedule.language")
    assert "numpy" in loaded
    assert not [name for name in loaded for part in late if name.startswith(f"pycollective.{part}")]
    assert not {"hashlib", "msgspec", "difflib"} & loaded


def test_without_docstrings() -> None:
    code = "import pycollective as pc; str(pc.init().explain('allreduce', 8)); pc.iallreduce([1.0]).wait()"
    assert "pycollective.comm.described" in modules_after(code, "-OO")


FIRST_CALLS = """
import threading
import numpy as np, pycollective as pc
from pycollective import graphs
sys.setswitchinterval(1e-5)
start, x, right = threading.Barrier(4), np.ones(300), []
calls = [lambda c: c.mix(x, graphs.ring), lambda c: c.allreduce(x, topology="ring"), lambda c: c.allgatherv(x),
         lambda c: c.scan(x, topology="star")]
def work(call):
    start.wait()
    right.extend((y == x).all() for y in pc.local_world(1).run(call))
threads = [threading.Thread(target=work, args=(call,)) for call in calls]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert right == [True] * 4
"""


def test_first_calls_of_several_threads() -> None:
    """Each loads what it needs, at the same time; without care three of four such programs fail."""
    for _ in range(3):
        modules_after(FIRST_CALLS)

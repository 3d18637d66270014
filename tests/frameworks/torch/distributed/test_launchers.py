"""Scripts under torchrun, mpirun, `pycollective run` and a plain loop find each other with the same two lines."""

from __future__ import annotations

import pytest

from labs import needs_mpi
from launch import launch

pytest.importorskip("torch")

SCRIPT = """
import sys, torch, torch.distributed as dist
import pycollective.torch

for how in sys.argv[1:]:
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("pycollective", **eval(how))
    x = torch.tensor([float(dist.get_rank()), 1.0])
    dist.all_reduce(x)
    even = dist.new_group(range(0, dist.get_world_size(), 2))
    if dist.get_rank() % 2 == 0:
        dist.all_reduce(x, group=even)
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/self/net/{name}")]
    assert [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{store.port:04X}")] == [
        f"{0x0100007F if sys.byteorder == 'little' else 0x7F000001:08X}:{store.port:04X}"  # 127.0.0.1 only
    ]
    print(dist.get_rank(), *x.tolist())
dist.all_reduce(x, async_op=True).get_future().then(lambda f: None)  # and exits without cleanup
"""
FORMS = ["{}", "dict(init_method='pycollective://')"]


@pytest.mark.parametrize("launcher", ["pycollective", pytest.param("mpirun", marks=needs_mpi)])
def test_under_other_launchers(launcher: str) -> None:
    """In both forms, in either order: the last one ends without cleanup."""
    forms = FORMS if launcher == "mpirun" else FORMS[::-1]
    ran = launch(3, SCRIPT, *forms, launcher=launcher, loaded=["torch"]).check()
    assert ran.outputs == ["0 6.0 6.0\n" * 2, "1 3.0 3.0\n" * 2, "2 6.0 6.0\n" * 2], ran.report()
    assert "Error" not in ran.stderr and "terminate" not in ran.stderr


BY_NAME = """
import argparse, json, sys, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--dist-backend")
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "pycollective")
assert loaded == ["pycollective", "pycollective.autoload", "pycollective.errors"], loaded  # only the name is registered
own = dist.distributed_c10d.rendezvous.__globals__["_env_rendezvous_handler"]
assert dist.distributed_c10d.rendezvous.__globals__["_rendezvous_handlers"]["env"] is own
dist.init_process_group("gloo")
dist.destroy_process_group()
assert "pycollective.torch" not in sys.modules
dist.init_process_group(parser.parse_args().dist_backend)
x = torch.ones(2)
dist.all_reduce(x)
assert dist.group.WORLD.name() == "pycollective"
print(x.tolist())
"""


def test_a_script_that_never_imports_us_names_the_backend() -> None:
    ran = launch(2, BY_NAME, "--dist-backend", "pycollective", launcher="torchrun", check=True)
    assert ran.outputs == ["[2.0, 2.0]\n"] * 2


def test_the_entry_point_never_raises() -> None:
    """torch cannot be imported if an entry point raises."""
    script = """
        import torch.distributed as dist
        import pycollective.autoload
        def fails(*args, **kwargs):
            raise OSError("fails")
        for owner, name, broken in (dist, "is_available", lambda: False), (dist.Backend, "register_backend", fails):
            works = getattr(owner, name)
            setattr(owner, name, broken)
            dist.Backend.backend_list = []
            pycollective.autoload.register()
            print(dist.Backend.backend_list)
            setattr(owner, name, works)
        pycollective.autoload.register()
        print(dist.Backend.backend_list)
    """
    assert launch(1, script, launcher="alone", check=True)[0] == "[]\n[]\n['pycollective']\n"


def test_alone() -> None:
    ran = launch(1, SCRIPT, *FORMS[::-1], launcher="alone")
    assert ran.outputs == ["0 0.0 1.0\n"]
    assert ran.returncode != 0 and "RANK" in ran.stderr  # torch's own message, for the second form


AGAIN = """
import os, sys, torch, torch.distributed as dist
import pycollective.torch
for i in range(3):
    dist.init_process_group("pycollective")
    x = torch.tensor([float(i)])
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs exit handlers, but the group belongs to the parent
    os.waitpid(child, 0)
    dist.all_reduce(x)
    assert x == 2 * i
    dist.destroy_process_group()
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    dist.init_process_group("pycollective")
    os._exit(3)
dist.init_process_group("pycollective")
try:
    dist.all_reduce(x)
except RuntimeError as error:
    assert "rank 1 is gone" in str(error), error
    raise
print("restarts:", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def test_under_torchrun_again_and_again() -> None:
    """Three groups in sequence; then a rank dies, torchrun restarts all of them, and they connect again."""
    ran = launch(2, AGAIN, launcher="torchrun", env={"PET_MAX_RESTARTS": "1"}, timeout=100, check=True)
    assert ran.outputs == ["restarts: 1\n"] * 2

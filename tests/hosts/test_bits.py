"""The bits of a reduction across hosts are those of one host."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import pycollective as pc
from hosts.namespaces import make_hosts, mpirun

CASE = """
import hashlib
import numpy as np, ml_dtypes
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "int8", "int64", "uint16", "bool")
SIZES = (1, 7, 1000, 70_001)

def digests(comm):
    found = {}
    for name in DTYPES:
        kind = np.dtype(getattr(ml_dtypes, name, name))
        for count in SIZES:
            x = (np.random.default_rng([comm.rank, count]).standard_normal(count) * 50).astype(kind)
            for op in ("sum", "prod", "max"):
                if op == "max" and kind.kind == "c" or op != "max" and kind.kind == "b":
                    continue
                with np.errstate(all="ignore"):
                    total = comm.allreduce(x, op=op)
                    if count == SIZES[-1]:  # in windows
                        window = comm.empty(count, kind)
                        window[...] = x
                        comm.allreduce(window, out=window, op=op)
                        assert window.tobytes() == total.tobytes(), (name, op)
                found[f"{op} {name} {count}"] = hashlib.sha256(total.tobytes()).hexdigest()[:16]
    return found
"""
ACROSS = """
import json, socket
import pycollective as pc
comm = pc.init()
print(json.dumps([comm.rank, socket.gethostname(), digests(comm)]), flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [(2, 2), (1, 2)])
def test_allreduce_has_the_bits_of_one_host(tmp_path: Path, ranks: tuple[int, ...]) -> None:
    script = tmp_path / "case.py"
    script.write_text(CASE + ACROSS)
    with make_hosts(len(ranks)) as hosts:
        done = mpirun(hosts, ranks, [sys.executable, "-I", script])
    answers = sorted(json.loads(line) for line in done.stdout.splitlines())
    names = [f"host{k}" for k, count in enumerate(ranks) for _ in range(count)]
    assert [answer[:2] for answer in answers] == [[rank, name] for rank, name in enumerate(names)]
    space: dict[str, object] = {"np": np}
    exec(CASE, space)
    expected = pc.local_world(sum(ranks)).run(space["digests"])[0]
    assert len(expected) > 60
    assert all(answer[2] == expected for answer in answers)

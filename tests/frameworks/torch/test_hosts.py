"""Training on two hosts: the exact weights of one host, and those of one process except for rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hvd
import layers
import pytest
from engine.two_hosts import on_two_hosts

torch: Any = pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.mpi

TRAINING = """
import hashlib, json, layers, os, torch, torch.distributed as dist, pycollective.torch as hvd
from examples.test_pytorch_digits import _ddp, _weights
from opt import alone, close, together
torch.set_num_threads(1)
hvd.init()
n, me = hvd.size(), hvd.rank()
assert (hvd.local_size(), hvd.cross_size(), hvd.cross_rank(), hvd.is_homogeneous()) == (2, 2, me // 2, True)
mixed = hvd.add_process_set(hvd.ProcessSet([1, 2]))
if me in (1, 2):
    assert hvd.allreduce(torch.tensor([me]), op=hvd.Sum, process_set=mixed).item() == 3
hvd.barrier()

def same(weights):
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()
    assert len(set(hvd.allgather_object(digest))) == 1, "ranks differ"
    return weights
sgd = lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
for options in ({}, {"passes": 2}, {"num_groups": 2, "gradient_predivide_factor": 2.0}):
    close(same(together(hvd, sgd, **options)), alone(sgd, n, passes=options.get("passes", 1)), 1e-12)
"""

EXAMPLES = """
digests = hvd.allgather_object(layers.digests(hvd))
if me == 0: open(f"{sys.argv[1]}/digests", "w").write(json.dumps(digests))
sets_of = lambda dtype: open(f"{sys.argv[1]}/{dtype}", "rb").read()
sets = sets_of("float32")
found = _weights(hvd, sets, "float32")
hvd.shutdown()
os.environ["HOROVOD_FUSION_THRESHOLD"] = "0"
hvd.init()
assert _weights(hvd, sets, "float32") == found, "fusion changes bits"
dist.init_process_group("pycollective")
for name, weights in (("horovod", found), ("ddp", _ddp(None, sets_of("float64")))):
    same(torch.frombuffer(bytearray(weights), dtype=torch.uint8))
    if me == 0: open(f"{sys.argv[1]}/{name}", "wb").write(weights)
dist.destroy_process_group()
"""

ELASTIC = """
model = torch.nn.Linear(3, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0)
sizes = []
@hvd.elastic.run
def train(state):
    while state.step < 4:
        if state.step == 2 and hvd.size() == 4 and hvd.rank() == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.full((4, 3), float(hvd.rank()))).sum().backward()
        optimizer.step()
        state.step += 1
        sizes.append(hvd.size())
        state.commit()
    same(model.weight.detach())
train(state)
print(sizes, hvd.local_size(), hvd.cross_size())
"""


def test_two_hosts(tmp_path: Path) -> None:
    """The bits of four ranks on one host. If MPI tolerates it, elastic training continues after a loss."""
    from examples.test_pytorch_digits import _alone, _weights, assert_close, rows

    env = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    for dtype in ("float32", "float64"):  # every rank would load scikit-learn
        (tmp_path / dtype).write_bytes(rows(dtype))
    script = TRAINING + EXAMPLES + ELASTIC
    done = on_two_hosts(tmp_path, script, tmp_path, env=env, options=("--with-ft", "mpi"), clock=False, timeout=100)
    assert (tmp_path / "ddp").exists(), done.report()
    assert (tmp_path / "horovod").read_bytes() == hvd.run(4, _weights, rows("float32"), "float32")[0]
    assert_close((tmp_path / "ddp").read_bytes(), _alone())  # in float64
    expected = hvd.run(4, layers.digests, str(tmp_path / "store"))
    assert len(expected[0]) > 150  # few types and operators are refused
    assert json.loads((tmp_path / "digests").read_text()) == expected
    assert list(done) == [f"[4, 4, 3, 3] {left}\n" for left in ("2 2", "2 1", "1 2")] + [""], done.report()

"""`pycollective run` starts programs that use only torch's variables: torch.distributed, accelerate, Lightning."""

from __future__ import annotations

import re

import pytest

from launch import launch, needs

pytest.importorskip("torch")

PLAIN = """
import os, socket, sys
import torch, torch.distributed as dist
if sys.argv[1] == "ours":
    import pycollective.torch
for backend in sys.argv[2:]:
    dist.init_process_group(backend)
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    with socket.socket() as probe:
        listens = probe.connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"]))) == 0
    print(backend, dist.get_rank(), dist.get_world_size(), x.item(), listens)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_plain_torch_forms_one_group() -> None:
    ran = launch(2, PLAIN, "theirs", "gloo", env={"RANK": "0", "WORLD_SIZE": "1"}, loaded=["torch"], check=True)
    assert ran.outputs == ["gloo 0 2 3.0 True\n", "gloo 1 2 3.0 True\n"]


def test_once_imported_pycollective_handles_env_and_the_master_port_stays_closed() -> None:
    ran = launch(2, PLAIN, "ours", "gloo", "pycollective", loaded=["torch"], check=True)
    assert ran.outputs == [f"gloo {rank} 2 3.0 False\npycollective {rank} 2 3.0 False\n" for rank in (0, 1)]


IN_BACKWARD = """
import os, sys
import torch, torch.distributed as dist
import pycollective.torch
dist.init_process_group("pycollective")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
for step in range(3):
    if step == 1 and dist.get_rank() == 1:
        if sys.argv[1] == "raises":
            raise ValueError("bad data")
        if sys.argv[1] == "leaves":
            os._exit(0)
        dist.barrier()
    model(torch.ones(2, 3)).sum().backward()
"""


@pytest.mark.parametrize(
    ("end", "line"),
    [
        ("raises", r"rank 1 \(pid \d+\) exited with code 1: ValueError: bad data"),
        ("leaves", r"rank 1 \(pid \d+\) exited with code 0 while other ranks needed it; rank 0 .*: PeerLostError: .*"),
        ("differs", r"the ranks' calls differ; rank \d \(pid \d+\) exited with code 1: MismatchError: .* barrier\(.*"),
    ],
)
def test_the_rank_that_ends_a_backward_pass_is_named(end: str, line: str) -> None:
    ran = launch(2, IN_BACKWARD, end, loaded=["torch"])
    last = ran.stderr.strip().splitlines()[-1]
    assert re.fullmatch(f"pycollective run: {line}", last), ran.stderr
    assert "At:" not in last


LIGHTNING = """
import torch, lightning

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
    def training_step(self, batch, _):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)
    def on_after_backward(self):
        gradient = self.layer.weight.grad.sum().item()
        print(self.trainer.global_rank, self.trainer.world_size, self.layer.bias.grad.item(), gradient)

quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
rows = torch.utils.data.TensorDataset(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
trainer = lightning.Trainer(accelerator="cpu", devices=2, max_epochs=1, **quiet)
trainer.fit(Model(), torch.utils.data.DataLoader(rows))
torch.distributed.destroy_process_group()  # a process that ends with Gloo's threads running may abort
"""


def test_lightning_forms_one_group() -> None:
    needs("lightning")
    ran = launch(2, LIGHTNING, check=True, timeout=90, loaded=["torch"])
    assert ran.outputs == ["0 2 1.0 2.0\n", "1 2 1.0 2.0\n"]  # one row each, and the mean of their gradients

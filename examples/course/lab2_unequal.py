"""Lab 2: ranks with unequal numbers of batches. Rank r has 3 + r; elsewhere the others wait forever.

pycollective run -np 2 lab2_unequal.py              an error on the ranks that still wait, which names the other
pycollective run -np 2 lab2_unequal.py --join       a rank without batches contributes zeros until all are done
"""

import sys

import torch

import pycollective.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters())
for batch in range(3 + hvd.rank()):
    optimizer.zero_grad()
    model(torch.full((8, 4), float(batch))).mean().backward()
    optimizer.step()
if "--join" in sys.argv:
    last = hvd.join()
    if hvd.rank() == 0:
        print(f"all ranks are done; rank {last} was the last")

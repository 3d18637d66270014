"""Data-parallel SGD: every rank computes gradients on its share of the data, all ranks take the same step.

    sgd = DistributedSGD(params, lr=0.1, momentum=0.9)      # params: a dict or list of arrays
    sgd.broadcast_parameters()                              # all ranks start from rank 0's
    for epoch in range(epochs):
        rows = partition(len(x), seed=0, epoch=epoch, drop_last=True)
        for start in range(0, len(rows), batch):
            sgd.step(gradients(params, x[rows[start : start + batch]]))
        save_checkpoint("digits.npz", sgd, epoch=epoch)     # rank 0 writes

For large batches there are other update rules, schedules of rates and batches, and an estimate of the largest useful
batch; see docs/large-batch.md:

    optimizer = DistributedOptimizer(params, lamb, lr=0.01)     # or lars, larc, novograd

Without a sum over all ranks, by averaging parameters with neighbours (see docs/communicator.md):

    sgd = GossipSGD(params, graphs.one_peer, lr=0.1, momentum=0.9)

or asynchronously, through a rank that holds the weights: `ParameterServer`.

The arrays are NumPy's or those of any library that follows the Python array API standard.
"""

from pycollective.optim import schedules
from pycollective.optim.checkpoint import load_checkpoint, save_checkpoint
from pycollective.optim.gossip import GossipSGD, consensus_distance
from pycollective.optim.noise import GradientNoise, NoiseScale
from pycollective.optim.objects import broadcast_object
from pycollective.optim.optimizer import DistributedOptimizer
from pycollective.optim.parameter_server import ParameterServer
from pycollective.optim.partition import growing_batches, partition, sample_rows
from pycollective.optim.rules import lamb, larc, lars, novograd
from pycollective.optim.sgd import DistributedSGD

__all__ = [
    "DistributedOptimizer",
    "DistributedSGD",
    "GossipSGD",
    "GradientNoise",
    "NoiseScale",
    "ParameterServer",
    "broadcast_object",
    "consensus_distance",
    "growing_batches",
    "lamb",
    "larc",
    "lars",
    "load_checkpoint",
    "novograd",
    "partition",
    "sample_rows",
    "save_checkpoint",
    "schedules",
]

"""The engine's figures: ``python -m bench.engine`` (installed: ``python -m pycollective.bench.engine``).

Named asynchronous operations, fused and run in the background, against the alternatives in PyTorch: Gloo one
tensor at a time, Gloo on DistributedDataParallel's buckets, DistributedDataParallel itself, and Open MPI.  All
contenders of a group take turns in the same processes; every figure is a median of ratios within a round.

==============  ================================================================================
shapes.py       the tensors: ResNet-50's by formula, how DistributedDataParallel buckets them, small ones
tensors.py      a list of arrays in plain memory or in a window; inputs, and their expected sum
contender.py    a named call that takes turns, and the check of its results
ours.py         the engine, and pycollective.torch on top of it
theirs.py       Gloo and Open MPI
training.py     a step of a small network: DistributedOptimizer against DistributedDataParallel
c10d.py         torch.distributed on this package's process group, and on one that does nothing
groups.py       the comparisons
result.py       rows and their JSON
run.py          a run of the ranks, and the files it writes
worker.py       the program of each rank
__main__.py     the command
==============  ================================================================================
"""

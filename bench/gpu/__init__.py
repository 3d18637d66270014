"""The GPU's figures: ``python -m bench.gpu`` measures, ``bench/gpu/all.sh`` builds, tests and measures in one go.

n virtual ranks share one GPU, each call of all of them is one launch.  The timing is of a CUDA graph of many calls,
replayed between two events; candidates take turns, buffers rotate, outputs are poisoned before and checked afterwards.

=============  ================================================================================
clock.py       a stream: capture, replay, events, turns
candidates/    what takes turns:
  buffers.py   random inputs and outputs of n ranks, several sets of each, and expected results
  calls.py     one of our calls as a candidate, and the bytes that its algorithm must move
  torch_sum.py the peer that a user would write: torch's sum over stacked buffers, and copies
  nccl.py      the peer NCCL, several ranks on one GPU in one process
  packing.py   the fusion buffer's copy kernel against a copy for each tensor
bits.py        whether `direct` is bitwise identical on virtual ranks, in processes and on CPU ranks
parts.py       what is measured: sweep, small messages, against copies, torch and NCCL; tiles and channels, for tuning
rows.py        a row of the result, a check, provenance, and the JSON
goals.py       the goals for one GPU, and the table of those that are met
small.py       every topology at small sizes, for compute-sanitizer
once.py        one call, for a profiler
__main__.py    the parts in a few processes, each within its time; the result file
=============  ================================================================================
"""

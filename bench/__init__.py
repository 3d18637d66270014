"""Sweeps over collectives, topologies, sizes and ranks, measured interleaved with other libraries.

``python -m bench`` (installed: ``pycollective bench``) runs a sweep, ``python -m bench.speed`` the speed
table of docs/performance.md, ``pycollective demo`` the program of ``make demo``.  The files, bottom first:

==============  ================================================================================
cases.py        what is measured: a collective, a type, a count; bytes, algbw and busbw
data.py         random inputs, poison, and the float64 reference behind ``#wrong``
stats.py        rotation and paired ratios
peers/          a common interface, and one file for each library
world.py        the processes that measure together
plan.py         the candidates of a run
measure.py      rounds: every candidate once in each, in rotated order
result.py       rows, provenance, JSON (the structs define its schema) and CSV
events.py       how the ranks report their rows
worker.py       the program of each rank
launch.py       the mpirun of an MPI, and its environment; busy neighbours
session.py      worlds one after another, collected into one result
table.py        the tables;  live.py the growing one;  plot.py the plots;  cli.py the command
goals.py        the rows of the speed table;  overheads.py times without a peer;  speed.py measures both
calls.py        every call against every MPI;  alignments.py copies and sums at every alignment;
                jobs.py two jobs on the same cores
namespaces.py   hosts simulated by network namespaces;  hosts.py allreduce across them
demo.py         ``pycollective demo``
test_*.py       pytest-benchmark cases for the compiler, the verifier and the overhead of a call
==============  ================================================================================
"""

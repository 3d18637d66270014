"""Sweeps over collectives, topologies, sizes and ranks, measured interleaved with Open MPI, MPICH and Gloo.

``python -m bench`` (installed: ``pycollective bench``) runs a sweep, ``python -m bench.speed`` the speed
table of docs/performance.md, ``pycollective demo`` what ``make demo`` shows.  The files, from the bottom up:

==============  ================================================================================
cases.py        what is measured: a collective, a type, a count; bytes, algbw and busbw
data.py         random inputs, poison, and the float64 reference behind ``#wrong``
stats.py        rotation and paired ratios
peers/          one interface, and one file for each library behind it
world.py        the processes that measure together
plan.py         which candidates a run consists of
measure.py      rounds: every candidate once in each, in rotated order
result.py       rows, provenance, JSON (the structs define its schema) and CSV
events.py       how the ranks' rows reach whoever watches
worker.py       what each rank runs
launch.py       the mpirun that belongs to mpi4py, and its environment
session.py      worlds one after another, gathered into one result
table.py        the tables;  live.py the one that grows;  plot.py the plots;  cli.py the command
goals.py        the rows of the speed table;  overheads.py what needs no peer;  speed.py measures both
demo.py         ``pycollective demo``
test_*.py       pytest-benchmark cases for the compiler, the verifier and the overhead of a call
==============  ================================================================================
"""

"""Sweeps over collectives, topologies, sizes and ranks, measured interleaved with Open MPI, MPICH and Gloo.

``python -m bench`` (installed: ``pycollective bench``) runs a sweep, ``python -m bench.speed`` the speed
table of docs/performance.md, ``python -m bench.demo`` what ``make demo`` shows.  The files, from the bottom
up:

==============  ================================================================================
cases.py        what is measured: a collective, a type, a count; bytes, algbw and busbw
data.py         random inputs, poison, and the float64 reference behind ``#wrong``
stats.py        medians, rotation, paired ratios
peers/          one interface, and one file for each library behind it
world.py        the processes that measure together
measure.py      rounds: every candidate once in each, in rotated order
plan.py         which candidates a sweep consists of
result.py       rows, provenance, JSON and CSV
launch.py       the mpirun that belongs to this mpi4py, and its environment
worker.py       what each rank runs;  events.py carries its rows to whoever watches
table.py        the live table;  plot.py the plots;  cli.py the command
==============  ================================================================================
"""

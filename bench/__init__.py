"""Sweeps over collectives, topologies, sizes and ranks, measured interleaved with other libraries.

``python -m bench`` (installed: ``pycollective bench``) runs a sweep, ``python -m bench.speed`` the speed
table of docs/performance.md, ``pycollective demo`` the program of ``make demo``.  Each command is a file or
a folder with a ``__main__.py``; they share the following, bottom first:

================  ==============================================================================
workload/         cases.py: a collective, a type, a count; bytes, algbw and busbw
                  data.py: random inputs, poison, and the float64 reference behind ``#wrong``
                  plan.py: the candidates of a run
peers/            a common interface, and one file for each library
measurement/      measure.py: rounds, every candidate once in each, in a balanced order
                  stats.py: that order, and paired ratios;  overheads.py: times without a peer
row.py            a row of a result, and a line of a table of goals
result.py         provenance, JSON (the structs define its schema) and CSV
goals.py          the goals of all programs but gpu/, and how they are judged
ranks/            world.py: the processes that measure together;  worker.py: the program of each
                  ab_worker.py, scale_rank.py: the programs of the ranks of ab.py and scale.py
                  events.py: how ranks report their rows
                  launch.py: the mpirun of an MPI, and its environment; busy neighbours
                  remote.py: the same on several hosts
                  session.py: worlds one after another, collected into one result
namespaces.py     hosts simulated by network namespaces, also for tests
report/           table.py: tables of rows;  lines.py: those of goals;  live.py: the growing one;  plot.py: plots
options.py        options that several commands have
runner.py         what all commands do that write a table
================  ==============================================================================

and the commands are:

================  ==============================================================================
cli.py            ``pycollective bench``;  sweep.py: what it runs, on one host or several
demo.py           ``pycollective demo``
speed.py          the speed table
calls.py          every call against every MPI;  mix.py: mix against MPI's neighbourhood collective
hosts.py          allreduce across simulated hosts
layers.py         what the layers above the core add to a call
alignments.py     copies and sums at every alignment
jobs.py           two jobs on the same cores
scale.py          start-up and first calls of many ranks
ab.py             two installed versions of the package against each other
engine/, gpu/     the figures of the engine and of GPUs
frameworks/       a program for each of JAX, Keras, TensorFlow and MXNet
microbenchmarks/  pytest-benchmark cases for the compiler, the verifier and the overhead of a call
================  ==============================================================================
"""

"""The command line, `pycollective`.

Each command is the function of its name in a file of its name, which commands.py imports when the command is called;
that file also has their common behaviour, options.py their common options, selection.py the lookup of topologies,
collectives and rank counts, and outputs.py the destinations of results. `bench` and `demo` are in pycollective.bench.
"""

"""The command line, `pycollective`.

main.py defines the commands, each implemented in a file of its name; commands.py has their common behaviour,
options.py their common options, selection.py the lookup of topologies, collectives and rank counts, and outputs.py the
destinations of results. `bench` and `demo` are in pycollective.bench.
"""

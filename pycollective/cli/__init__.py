"""The command line, `pycollective`.

main.py has the commands, each of which is carried out by a file of its name; commands.py has how all of them behave,
options.py the options that they share, selection.py what the words of these name, and outputs.py where results go.
`bench` and `demo` are in pycollective.bench.
"""

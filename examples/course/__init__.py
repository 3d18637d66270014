"""The labs of a course on data-parallel training; README.md lists them. `python -m examples.course` runs all."""

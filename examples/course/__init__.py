"""The labs of a course on data-parallel training: see README.md. `python -m examples.course` runs all of them."""

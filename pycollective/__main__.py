"""`python -m pycollective`: the command `pycollective`, by the Python that is to run it."""

from __future__ import annotations

from pycollective.cli.main import app

if __name__ == "__main__":
    app()

"""`python -m pycollective`: the command `pycollective`, run by this Python."""

from __future__ import annotations

from pycollective.cli.main import app

if __name__ == "__main__":
    app()

"""Write pycollective/_core.pyi from the compiled module, or with --check compare it.

Run after a change of csrc/bindings: `make stubs`.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).resolve().parent.parent / "pycollective" / "_core.pyi"


def generate() -> str:
    """The stub of the installed `pycollective._core`, as pybind11-stubgen prints it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "pycollective._core", "-o", folder]
        subprocess.run([*command, "--exit-code"], check=True, capture_output=True, text=True, cwd=folder)
        return (Path(folder) / "pycollective" / "_core.pyi").read_text()


def main() -> int:
    """Exit status 1 if --check finds a difference."""
    if importlib.util.find_spec("pybind11_stubgen") is None:
        raise SystemExit("pybind11-stubgen is missing: pip install 'pycollective[dev]'")
    text = generate()
    if "--check" not in sys.argv:
        STUB.write_text(text)
        return 0
    if text == STUB.read_text():
        return 0
    print(f"{STUB.name} is not what the bindings say; run `make stubs`")
    return 1


if __name__ == "__main__":
    sys.exit(main())

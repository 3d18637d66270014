"""Write pycollective/_core.pyi and _cuda.pyi from the compiled modules, or with --check compare them.

Run after a change of csrc/bindings: `make stubs`. If `_cuda` is not built, its stub is unchanged.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "pycollective"
MODULES = ("_core", "_cuda")


def generate(module: str) -> str:
    """The stub of the installed `pycollective.<module>`, as pybind11-stubgen prints it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", f"pycollective.{module}", "-o", folder]
        subprocess.run([*command, "--exit-code"], check=True, capture_output=True, text=True, cwd=folder)
        return (Path(folder) / "pycollective" / f"{module}.pyi").read_text()


def built() -> Iterator[str]:
    """The modules that are installed here."""
    for module in MODULES:
        if importlib.util.find_spec(f"pycollective.{module}") is not None:
            yield module
        elif module == "_core":
            raise SystemExit("pycollective is not installed: `make install`")
        else:
            print(f"{module} is not built here; its stub is unchanged")


def main() -> int:
    """Exit status 1 if --check finds a difference."""
    if importlib.util.find_spec("pybind11_stubgen") is None:
        raise SystemExit("pybind11-stubgen is missing: `make lint` installs it")
    status = 0
    for module in built():
        stub, text = FOLDER / f"{module}.pyi", generate(module)
        if "--check" not in sys.argv:
            stub.write_text(text)
        elif not stub.exists() or text != stub.read_text():
            print(f"{stub.name} does not match the bindings; run `make stubs`")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())

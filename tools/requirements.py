"""The requirements of pyproject.toml, a line each, as pip reads them.

python tools/requirements.py test       # the package's own, and those of the extra `test`
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

HERE = Path(__file__).resolve().parent


def requirements(project: dict[str, Any], extra: str) -> list[str]:
    """What the project needs for an extra, with the extras that it names in turn; for "" by itself."""
    found = list(project["dependencies"])
    for line in project["optional-dependencies"][extra] if extra else ():
        own = line.startswith(f"{project['name']}[")
        extras = line.partition("[")[2].rstrip("]").split(",") if own else []
        found += [each for name in extras for each in requirements(project, name)] if own else [line]
    return list(dict.fromkeys(found))


def described() -> dict[str, Any]:
    """The project's table of pyproject.toml."""
    found: dict[str, Any] = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    return found


if __name__ == "__main__":
    print(*requirements(described(), sys.argv[1]), sep="\n")

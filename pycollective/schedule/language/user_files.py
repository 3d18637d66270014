"""Running user files, which may import their siblings, as modules that hide no others."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from zlib import crc32

_sources: dict[Path, bytes] = {}  # of each file that has been executed, its content
_parts: dict[Path, set[Path]] = {}  # of each file, the siblings that it imported
_siblings: dict[Path, dict[str, ModuleType]] = {}  # by folder and name


def near_files(missing: Path) -> str:
    """ "; did you mean FILE?" for a missing file and one in its folder with a similar name, else empty."""
    try:
        siblings = [path.name for path in missing.absolute().parent.iterdir() if path.suffix == missing.suffix]
    except OSError:
        return ""
    near = difflib.get_close_matches(missing.name, siblings, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def changed(file: Path) -> list[Path]:
    """The files to execute (again) for a file: itself and its siblings that were edited; empty if up to date.

    A file loaded by an import statement, or that is the program itself, counts as executed.
    """
    if file not in _sources and any(_file_of(module) == file for module in list(sys.modules.values())):
        _sources[file] = file.read_bytes()
    if file not in _sources:
        return [file]
    edited = [path for path in _parts.get(file, ()) if _read(path) != _sources[path]]
    return [*edited, file] if edited or _read(file) != _sources[file] else []


def execute(file: Path, edited: list[Path]) -> None:
    """Run a file, and run the siblings in `edited` again when it imports them.

    Compiled from source: cached bytecode misses edits made within a second. Its module has a unique name, so that it
    cannot hide another of the same name; the siblings have the names by which they are imported.
    """
    source = file.read_bytes()
    module = ModuleType(f"pycollective_user_{file.stem}_{crc32(bytes(file)):08x}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    known = _siblings.setdefault(file.parent, {})
    for name in [name for name, sibling in known.items() if _file_of(sibling) in edited]:
        del known[name]
        sys.modules.pop(name, None)
    known[file.stem] = module  # a sibling that imports this file gets this module
    with _importable(file):
        exec(compile(source, str(file), "exec"), module.__dict__)
    _sources[file] = source
    _parts[file] = {path for name, sibling in known.items() if name != file.stem and (path := _file_of(sibling))}
    _sources.update((path, _read(path)) for path in _parts[file])


@contextlib.contextmanager
def _importable(file: Path) -> Iterator[None]:
    """Make siblings of a file importable, and hide those of other folders with the same names."""
    folder = file.parent
    for other, modules in _siblings.items():
        for name in modules if other != folder else ():
            if sys.modules.get(name) is modules[name] and _is_in(folder, name):
                del sys.modules[name]
    before = set(sys.modules)
    for name, module in _siblings[folder].items():
        sys.modules.setdefault(name, module)
    sys.path.insert(0, str(folder))
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.dont_write_bytecode = bytecode
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if _is_in(folder, name) and _file_of(sys.modules[name]) != file:
                _siblings[folder][name] = sys.modules[name]
        if file.stem not in before:
            sys.modules.pop(file.stem, None)


def _is_in(folder: Path, name: str) -> bool:
    """Return whether a module of this name would be found in the folder."""
    top = name.partition(".")[0]
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()


def _file_of(module: ModuleType) -> Path | None:
    name = getattr(module, "__file__", None)
    return Path(name).resolve() if isinstance(name, str) and name.endswith(".py") else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # deleted in the meantime
        return b""

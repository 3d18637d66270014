"""Tools for building a wheel: zig as the compiler, pip in an environment of its Python, auditwheel."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).resolve().parents[2]
GLIBC = "2.28"
"""Version of the C library that wheels are linked against: that of manylinux_2_28."""
LIMIT = 1800  # seconds that one command may take
MOST_BYTES = {"cpu": 2_000_000, "cuda": 8_000_000}
START = time.time()

Minor = tuple[int, int]
"""Version of a Python: (3, 11)."""


class Failure(SystemExit):
    """Ends the program with one line."""


def report(text: str) -> None:
    """Print a line with the seconds since make started."""
    print(f"{time.time() - float(os.environ.get('STEP_START') or START):4.0f} s  {text}", flush=True)


def run(command: Sequence[object], log: Path | None = None, **options: Any) -> str:
    """Run to the end; returns the output. Raises Failure, with the last lines, on errors or after LIMIT seconds."""
    words = [str(word) for word in command]
    options = {"timeout": LIMIT, "stdin": subprocess.DEVNULL, **options}
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(words)}: not done after {LIMIT} s") from None
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout)
    if done.returncode != 0:
        last = "\n".join(done.stdout.splitlines()[-40:])
        raise Failure(f"{last}\n{' '.join(words)}: exit code {done.returncode}")
    return str(done.stdout)


def emptied(*folders: Path) -> None:
    """Remove what earlier runs have left."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def new_environment(python: Path, home: Path, *requirements: str | Path) -> Path:
    """A new virtual environment with these packages; returns its interpreter."""
    emptied(home)
    run([python, "-I", "-m", "venv", home])
    inner = home / "bin/python"
    if requirements:
        run([inner, "-m", "pip", "--disable-pip-version-check", "install", *requirements])
    return inner


def compiler(work: Path) -> dict[str, Path]:
    """Wrappers of zig's compiler and archiver, by the CMake variable that names them."""
    import ziglang  # type: ignore[import-not-found,unused-ignore]

    zig = Path(ziglang.__file__).with_name("zig")
    folder, objects = work / "compiler", work / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    # zig's cache of objects misses changes of files that assembly includes (cmake/custom.cmake), so it is used for
    # one build only. The other cache has zig's own libraries.
    emptied(objects)
    programs = {"CMAKE_CXX_COMPILER": "c++", "CMAKE_AR": "ar", "CMAKE_RANLIB": "ranlib"}
    for name in programs.values():
        target = f" -target {platform.machine()}-linux-gnu.{GLIBC}" if name == "c++" else ""
        caches = f"ZIG_GLOBAL_CACHE_DIR='{work / 'zig'}' ZIG_LOCAL_CACHE_DIR='{objects}'"
        (folder / name).write_text(f"#!/bin/sh\n{caches} exec '{zig}' {name}{target} \"$@\"\n")
        (folder / name).chmod(0o755)
    return {variable: folder / name for variable, name in programs.items()}


def build_requirements() -> list[str]:
    """The build requirements of pyproject.toml, and a pip that passes settings to the build."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return ["pip>=23.1", *found]


def make_sdist(out: Path, work: Path) -> Path:
    """The sdist in `out`, and its contents in work/source; returns that folder."""
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT], work / "log/sdist.txt")
    (sdist,) = out.glob("*.tar.gz")
    source = work / "source"
    emptied(source, work / "unpacked")
    shutil.unpack_archive(sdist, work / "unpacked")
    (unpacked,) = (work / "unpacked").iterdir()
    unpacked.rename(source)
    report(f"{sdist.relative_to(ROOT)}: {sdist.stat().st_size / 1e6:.2f} MB")
    return source


def build(python: Path, tag: str, source: Path, work: Path, gpu: bool, earlier: Path | None) -> tuple[Path, Path]:
    """A wheel for the interpreter of an environment that has the build requirements; not yet repaired.

    Args:
        gpu: with the GPU side.
        earlier: the folder of an earlier build, whose libraries without Python this one uses.

    Returns:
        The wheel, and the folder of the build.
    """
    folder, raw = work / "build" / tag, work / "raw" / tag
    options = {
        **compiler(work),
        "CMAKE_MODULE_LINKER_FLAGS": "-s",
        "PC_CUDA": "ON" if gpu else "OFF",
        "PC_CUDA_ARCHITECTURES": "wheel",
    }
    if earlier is not None:
        options["PC_CORE_LIBRARY"] = earlier / "libpc_core.a"
        if gpu:
            options["PC_CUDA_LIBRARY"] = earlier / "libpc_cuda.a"
    words = [*(f"cmake.define.{name}={value}" for name, value in options.items())]
    words += [f"build-dir={folder}", "install.strip=false"]
    emptied(folder, raw)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "-v", "wheel", "--no-build-isolation", "--no-deps"]
    given = [word for option in words for word in ("-C", option)]
    start = time.monotonic()
    report(f"{tag}: compiling")
    run([*pip, "--wheel-dir", raw, *given, source], work / f"log/{tag}.txt", env=own_path())
    (wheel,) = raw.glob("*.whl")
    report(f"{tag}: compiled in {time.monotonic() - start:.0f} s")
    return wheel, folder


def own_path() -> dict[str, str]:
    """The environment, in which the programs beside this Python are found first."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def without_gpu(wheel: Path, work: Path) -> Path:
    """Copy a wheel without pycollective._cuda: the rest does not depend on it."""
    folder, packed = work / "unpacked-wheel", work / "without-gpu"
    emptied(folder, packed)
    tool = [sys.executable, "-m", "wheel"]
    run([*tool, "unpack", "--dest", folder, wheel])
    (contents,) = folder.iterdir()
    (extension,) = (contents / "pycollective").glob("_cuda*.so")
    extension.unlink()
    packed.mkdir()
    run([*tool, "pack", "--dest-dir", packed, contents])
    (done,) = packed.glob("*.whl")
    return done


def repair(wheel: Path, out: Path, work: Path) -> Path:
    """The wheel with the tag that its symbols allow, in `out`. Raises Failure if that needs a newer C library."""
    repaired = work / "repaired"
    emptied(repaired)
    audit = [sys.executable, "-m", "auditwheel"]
    run([*audit, "repair", "--wheel-dir", repaired, wheel], env=own_path())
    (done,) = repaired.glob("*.whl")
    tags = {(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)_", done.name)}
    newest = tuple(map(int, GLIBC.split(".")))
    if not tags or max(tags) > newest:
        raise Failure(f"{done.name} is not for manylinux_{GLIBC.replace('.', '_')}")
    shown = re.sub(r"\s+", " ", run([*audit, "show", done], env=own_path()))
    if not re.search(rf'constrained to|consistent with the following platform tag: "manylinux_{max(tags)[0]}', shown):
        raise Failure(f"auditwheel does not agree with the name of {done.name}: {shown}")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(done, out))

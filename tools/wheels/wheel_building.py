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
from dataclasses import dataclass
from pathlib import Path

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


def run(command: Sequence[object], log: Path | None = None, **options: object) -> str:
    """Run to the end; returns the output. Raises Failure, with the last lines, on errors or after LIMIT seconds."""
    settings: dict[str, object] = {
        "text": True,
        "timeout": LIMIT,
        "stdin": subprocess.DEVNULL,
        "check": False,
        **options,
    }
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            **settings,  # type: ignore[call-overload]
        )
    except subprocess.TimeoutExpired:
        raise Failure(f"{' '.join(map(str, command))}: not done after {LIMIT} s") from None
    output = str(done.stdout)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(output)
    if done.returncode != 0:
        last = "\n".join(output.splitlines()[-40:])
        raise Failure(f"{last}\n{' '.join(map(str, command))}: exit code {done.returncode}")
    return output


def new_environment(python: Path, home: Path, *requirements: str | Path) -> Path:
    """A new virtual environment with these packages; returns its interpreter."""
    shutil.rmtree(home, ignore_errors=True)
    run([python, "-I", "-m", "venv", home])
    inner = home / "bin/python"
    if requirements:
        run([inner, "-m", "pip", "--disable-pip-version-check", "install", *requirements])
    return inner


def compiler(work: Path, machine: str) -> dict[str, Path]:
    """Wrappers of zig's compiler and archiver, by the CMake variable that names them."""
    import ziglang  # type: ignore[import-not-found,unused-ignore]

    zig = Path(ziglang.__file__).with_name("zig")
    folder = work / "compiler" / machine
    folder.mkdir(parents=True, exist_ok=True)
    # zig's cache of objects misses changes of files that assembly includes (cmake/custom.cmake), so it is used for
    # one build only. The other cache has zig's own libraries.
    objects = work / "objects" / machine
    shutil.rmtree(objects, ignore_errors=True)
    caches = f"ZIG_GLOBAL_CACHE_DIR='{work / 'zig'}' ZIG_LOCAL_CACHE_DIR='{objects}'"
    words = {
        "CMAKE_CXX_COMPILER": ("c++", f"c++ -target {machine}-linux-gnu.{GLIBC}"),
        "CMAKE_AR": ("ar", "ar"),
        "CMAKE_RANLIB": ("ranlib", "ranlib"),
    }
    for name, arguments in words.values():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{caches} exec '{zig}' {arguments} \"$@\"\n")
        program.chmod(0o755)
    return {variable: folder / name for variable, (name, _) in words.items()}


def build_requirements() -> list[str]:
    """The build requirements of pyproject.toml, and a pip that passes settings to the build."""
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return ["pip>=23.1", *found]


def make_sdist(out: Path, work: Path) -> Path:
    """The sdist in `out`, and its contents in work/source; returns that folder."""
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", out, ROOT], work / "log/sdist.txt")
    (sdist,) = out.glob("*.tar.gz")
    source = work / "source"
    for old in (source, work / "unpacked"):
        shutil.rmtree(old, ignore_errors=True)
    shutil.unpack_archive(sdist, work / "unpacked")
    (unpacked,) = (work / "unpacked").iterdir()
    unpacked.rename(source)
    report(f"{sdist.relative_to(ROOT)}: {sdist.stat().st_size / 1e6:.2f} MB")
    return source


@dataclass
class Builder:
    """Builds wheels for one kind of machine."""

    source: Path
    work: Path
    gpu: bool = False  # with the GPU side
    machine: str = platform.machine()
    python_options: tuple[str, ...] = ()  # CMake's, for a Python that cannot be run
    _built: Path | None = None  # the folder of the first build, whose libraries the others reuse

    def build(self, python: Path, tag: str) -> Path:
        """A wheel for the interpreter of an environment that has the build requirements; not yet repaired."""
        name = f"{self.machine}-{tag}"
        folder, raw = self.work / "build" / name, self.work / "raw" / name
        options = {
            **compiler(self.work, self.machine),
            "CMAKE_MODULE_LINKER_FLAGS": "-s",
            "PC_CUDA": "ON" if self.gpu else "OFF",
            "PC_CUDA_ARCHITECTURES": "wheel",
        }
        if self.machine != platform.machine():
            options |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": self.machine}
        if self._built is not None:
            options["PC_CORE_LIBRARY"] = self._built / "libpc_core.a"
            if self.gpu:
                options["PC_CUDA_LIBRARY"] = self._built / "libpc_cuda.a"
        words = [f"cmake.define.{key}={value}" for key, value in options.items()] + list(self.python_options)
        words += [f"build-dir={folder}", "install.strip=false"]
        for old in (folder, raw):
            shutil.rmtree(old, ignore_errors=True)
        pip = [python, "-m", "pip", "--disable-pip-version-check", "-v", "wheel", "--no-build-isolation", "--no-deps"]
        given = [word for option in words for word in ("-C", option)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        start = time.monotonic()
        report(f"{name}: compiling")
        run(
            [*pip, "--wheel-dir", raw, *given, self.source],
            self.work / f"log/{name}.txt",
            env={**os.environ, "PATH": path},
        )
        self._built = self._built or folder
        (wheel,) = raw.glob("*.whl")
        report(f"{name}: compiled in {time.monotonic() - start:.0f} s")
        return wheel


def without_gpu(wheel: Path, work: Path) -> Path:
    """Copy a wheel without pycollective._cuda: the rest does not depend on it."""
    folder, packed = work / "unpacked-wheel", work / "without-gpu"
    for old in (folder, packed):
        shutil.rmtree(old, ignore_errors=True)
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
    shutil.rmtree(repaired, ignore_errors=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    audit = [sys.executable, "-m", "auditwheel"]
    run([*audit, "repair", "--wheel-dir", repaired, wheel], env=environment)
    (done,) = repaired.glob("*.whl")
    tags = {(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)_", done.name)}
    newest = tuple(map(int, GLIBC.split(".")))
    if not tags or max(tags) > newest:
        raise Failure(f"{done.name} is not for manylinux_{GLIBC.replace('.', '_')}")
    shown = re.sub(r"\s+", " ", run([*audit, "show", done], env=environment))
    if not re.search(rf'constrained to|consistent with the following platform tag: "manylinux_{max(tags)[0]}', shown):
        raise Failure(f"auditwheel does not agree with the name of {done.name}: {shown}")
    out.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(done, out))

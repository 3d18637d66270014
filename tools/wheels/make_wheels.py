"""Build the sdist and, from it, the wheels; install each into an empty environment and test it there.

python tools/wheels/make_wheels.py --out dist [--for 3.10,3.13] [--tests FILE...] [--no-gpu] [--no-demo]

In the folder `out`: the sdist and a manylinux wheel for every CPython of this machine; in out/cuda, if nvcc 12.4 or
newer is found, the same with the GPU part. Those for other processors are cibuildwheel's: .github/workflows/wheels.yml.
The compiler is zig's clang from PyPI, which links against an old C library on any host. nvcc also needs gcc, which
compiles only the kernel launches and uses nothing of gcc's runtime. Python-independent parts are compiled
once. `make wheels` creates the environment for this program; the wheels' own are in build/wheels.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from wheel_building import (
    MOST_BYTES,
    ROOT,
    Failure,
    Minor,
    build,
    build_requirements,
    emptied,
    make_sdist,
    new_environment,
    repair,
    report,
    run,
    without_gpu,
)

OLDEST = (3, 10)

LEVELS = {
    "avx2": "pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c bmi1 avx2 bmi2 lahf_lm abm",
    "avx512": "avx512f avx512dq avx512cd avx512bw avx512vl",
}
"""Extensions that -march=x86-64-v3 and x86-64-v4 enable, as named in /proc/cpuinfo."""

COMPILERS = re.compile(
    r"(.*-)?(cc|c\+\+|c89|c99|cpp|gcc|g\+\+|clang|clang\+\+|ld|gold|lld|as|nvcc|zig)(-[\d.]+|\.\w+)?"
)

_ABOUT = """
import importlib.util, os, platform, sys, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
usable = platform.python_implementation() == "CPython" and os.path.exists(header) and "t" not in sys.abiflags
print(*sys.version_info[:2], int(usable and importlib.util.find_spec("ensurepip") is not None))
"""

# Interpreters


def interpreters(path: str, versions: Path) -> dict[Minor, Path]:
    """A CPython for each minor version from 3.10 on: the first that has its headers and can create environments.

    Args:
        path: folders, separated by colons, as in PATH.
        versions: the folder with pyenv's versions; it need not exist.
    """
    found: dict[Minor, Path] = {}
    folders = [*map(Path, filter(None, path.split(os.pathsep))), *sorted(versions.glob("*/bin"), reverse=True)]
    for program in [program for folder in folders for program in sorted(folder.glob("python3.*"))]:
        named = re.fullmatch(r"python3\.(\d+)", program.name)
        minor = (3, int(named[1])) if named else (0, 0)
        if minor < OLDEST or minor in found:
            continue
        try:  # a shim of pyenv's for a version that is not selected fails
            done = subprocess.run(
                [program, "-I", "-c", _ABOUT], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.split() == [*map(str, minor), "1"]:
            found[minor] = program
    return dict(sorted(found.items()))


def chosen(found: Mapping[Minor, Path], wanted: str) -> dict[Minor, Path]:
    """The Pythons that `wanted` names, as "3.10 newest"; all for "". Raises Failure if one is missing."""
    named = {f"{a}.{b}": (a, b) for a, b in found}
    if found:
        named |= {"oldest": min(found), "newest": max(found)}
    words = wanted.replace(",", " ").split()
    for word in words:
        if word not in named:
            have = ", ".join(f"{a}.{b}" for a, b in found) or "none"
            raise Failure(f"there is no CPython {word} with headers and ensurepip on this machine (found: {have})")
    return {minor: found[minor] for minor in found if not words or minor in [named[word] for word in words]}


def best_level(cpuinfo: str) -> str:
    """The instruction set that the kernels of an x86-64 machine must choose, from the text of /proc/cpuinfo."""
    described = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = set(described[1].split()) if described else set()
    best = "baseline"
    for name, needed in LEVELS.items():
        if not flags.issuperset(needed.split()):
            break
        best = name
    return best


# Testing


def path_without_compilers(folder: Path) -> str:
    """A PATH of one folder, with links to the system's programs except compilers and linkers."""
    emptied(folder)
    folder.mkdir(parents=True)
    for place in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for program in Path(place).glob("*"):
            if not COMPILERS.fullmatch(program.name) and not program.name.startswith(("python", "pip")):
                link = folder / program.name
                if not link.is_symlink():
                    link.symlink_to(program)
    return str(folder)


@dataclass
class Trial:
    """An environment with only a wheel and its dependencies."""

    home: Path
    path: str

    @functools.cached_property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYCOLLECTIVE_", "PYTHON", "VIRTUAL_ENV"))}
        absent = dict.fromkeys(("CC", "CXX", "CUDACXX", "CUDA_HOME"), "/nonexistent")
        return {**kept, **absent, "PATH": f"{self.home / 'bin'}{os.pathsep}{self.path}", "OMP_NUM_THREADS": "1"}

    def install(self, *requirements: str | Path) -> None:
        run([self.home / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", *requirements],
            env=self.environment)  # fmt: skip

    def try_(self, *command: str | Path, **variables: str) -> str:
        """The output of a program of the environment."""
        words = [self.home / "bin" / command[0], *command[1:]]
        return run(words, env={**self.environment, **variables}, cwd=self.home)

    def levels(self) -> str:
        """Assert that each instruction set is selected correctly; returns the best of them."""
        best = best_level(Path("/proc/cpuinfo").read_text())
        names = ["baseline", *LEVELS]
        code = "from pycollective import _core; print(_core.instruction_set())"
        for number, name in enumerate(names, 1):
            got = self.try_("python", "-I", "-c", code, PYCOLLECTIVE_ISA=str(number)).strip()
            if got != names[min(number - 1, names.index(best))]:
                raise Failure(
                    f"{self.home}: with PYCOLLECTIVE_ISA={number} the kernels are {got}; expected up to {name}"
                )
        return best

    def commands(self, flavour: str) -> None:
        """Test the command line, which reports the GPU part if present."""
        self.try_("pycollective", "--help")
        self.try_("pycollective", "doctor")
        self.try_("pycollective", "verify", "all", "--ranks", "2-4")
        code = "import importlib.util as u; print(u.find_spec('pycollective._cuda') is not None)"
        if self.try_("python", "-I", "-c", code).strip() != str(flavour == "cuda"):
            raise Failure(f"{self.home}: pycollective._cuda is missing, or should be")
        if flavour == "cuda":
            self.try_("python", "-I", "-c", "from pycollective import _core, _cuda")

    def tests(self, files: Iterable[str]) -> str:
        """Run these files of the repository; returns the last line of pytest."""
        self.install("pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "hypothesis>=6.100", "cloudpickle>=2",
                     "array-api-strict>=2", "jsonschema>=4")  # fmt: skip
        pytest = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"]
        pytest += ["-k", "README or not test_block_runs"]  # of the documentation's examples
        words = [self.home / "bin/python", "-I", *pytest, *files]
        return run(words, env=self.environment, cwd=ROOT).strip().splitlines()[-1]


def try_wheel(wheel: Path, python: Path, flavour: str, options: argparse.Namespace, work: Path) -> None:
    """Install a wheel into an empty environment and test it; reports one line."""
    start = time.monotonic()
    size = wheel.stat().st_size
    if size > MOST_BYTES[flavour]:
        raise Failure(f"{wheel.name} has {size / 1e6:.2f} MB, more than {MOST_BYTES[flavour] / 1e6:.0f}")
    trial = Trial(work / "trial", path_without_compilers(work / "programs"))
    new_environment(python, trial.home)
    trial.install(wheel)
    level = trial.levels()
    trial.commands(flavour)
    done = [f"level {level}", "commands"]
    if flavour == "cpu" and options.tests:  # the core is the same in the other flavour
        readme = trial.tests([*options.tests])
        done.append(f"tests: {readme.strip('= ')}")
    if flavour == "cpu" and options.demo:
        trial.install(f"{wheel}[examples]")
        trial.try_("pycollective", "demo", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        done.append("demo")
    report(f"{wheel.name}: {size / 1e6:.2f} MB, {', '.join(done)}; {time.monotonic() - start:.0f} s")


# All steps


def has_nvcc() -> bool:
    """Whether there is an nvcc that can build the GPU side: 12.4 or newer."""
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    try:
        found = re.search(r"release (\d+)\.(\d+)", run([nvcc, "--version"]))
    except (OSError, Failure):
        return False
    return found is not None and (int(found[1]), int(found[2])) >= (12, 4)


def main(options: argparse.Namespace) -> None:
    """Build and test everything that this machine supports."""
    out, work = options.out.resolve(), ROOT / "build/wheels"
    versions = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    pythons = chosen(interpreters(os.environ["PATH"], versions), options.pythons)
    if not pythons:
        raise Failure("there is no CPython 3.10 or newer with headers and ensurepip on this machine")
    report(f"wheels for CPython {', '.join(f'{a}.{b}' for a, b in pythons)}")
    for old in [*out.glob("*.tar.gz"), *out.glob("*.whl"), *out.glob("*/*.whl")]:
        old.unlink()
    source = make_sdist(out, work)
    gpu = options.gpu and has_nvcc()
    if options.gpu and not gpu:
        report("no nvcc 12.4 or newer was found: no wheels with the GPU side")
    libraries: Path | None = None
    for (major, minor), python in pythons.items():
        tag = f"cp{major}{minor}"
        inner = new_environment(python, work / "env" / tag, *build_requirements())
        built, folder = build(inner, tag, source, work, gpu, libraries)
        libraries = libraries or folder
        plain = without_gpu(built, work) if gpu else built
        try_wheel(repair(plain, out, work), python, "cpu", options, work)
        if gpu:
            try_wheel(repair(built, out / "cuda", work), python, "cuda", options, work)


def parsed() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder; older wheels in it are removed")
    parser.add_argument("--for", dest="pythons", default="", help='as "3.10 newest"; default: every CPython here')
    parser.add_argument("--tests", nargs="*", default=[], help="files that pytest runs with each wheel")
    parser.add_argument("--no-gpu", dest="gpu", action="store_false", help="no wheels with the GPU side")
    parser.add_argument("--no-demo", dest="demo", action="store_false", help="without `pycollective demo`")
    return parser.parse_args()


if __name__ == "__main__":
    main(parsed())

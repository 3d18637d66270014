"""A wheel for aarch64: cross-compiled, and tested under qemu user mode with Debian's Python for arm64.

Everything comes from Debian's packages, unpacked into a folder: the machine's architectures and packages are
unchanged. Only correctness can be tested there, not speed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from wheel_building import (
    GLIBC,
    MOST_BYTES,
    Builder,
    Failure,
    Minor,
    build_requirements,
    new_environment,
    repair,
    report,
    run,
)

PACKAGES = """
libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libuuid1 libbz2-1.0 liblzma5 libcrypt1 libsqlite3-0
libpython{v}-minimal libpython{v}-stdlib libpython{v}-dev python{v}-minimal
"""

SMOKE = """
import platform, numpy as np, pycollective as pc
from pycollective import _core
from pycollective.comm.arguments.arrays import numpy_dtype
assert platform.machine() == "aarch64" and _core.instruction_set() == "baseline"
for name in _core.dtypes():
    kind = numpy_dtype(name.rstrip("_"))
    least = 1 if "e8m0" in name else 0  # a power of two is never 0
    given = [(np.arange(3000) % 5 + r + least).astype(kind) for r in range(3)]
    def rank(comm):
        return comm.allreduce(given[comm.rank])
    total = pc.local_world(3).run(rank)
    exact = sum(one.astype("complex128") for one in given)  # of what the type can hold; then rounded once
    expected = (exact if kind.kind == "c" else exact.real).astype(kind)
    assert all((got == expected).all() for got in total), name
x = np.random.default_rng(0).standard_normal(100_003).astype("float32")
for topology in ("ring", "tree", "wheel", "direct", "star", "halving_doubling"):
    for got in pc.local_world(4).run(lambda comm: comm.allreduce(x * (comm.rank + 1), topology=topology)):
        np.testing.assert_allclose(got, 10 * x, rtol=1e-5)
print("right")
"""


class Missing(Exception):
    """A requirement is missing; the text names it."""


def download(folder: Path, configuration: Path | None, *packages: str) -> list[Path]:
    """Debian packages, fetched into an empty folder. Raises Missing."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = {**os.environ, **({"APT_CONFIG": str(configuration)} if configuration else {})}
    try:
        if configuration:
            run(["apt-get", "-qq", "update"], env=environment)
        run(["apt-get", "-qq", "download", *packages], env=environment, cwd=folder)
    except (OSError, Failure) as error:
        raise Missing(f"Debian's packages {', '.join(packages)}: {str(error).splitlines()[-1]}") from None
    return sorted(folder.glob("*.deb"))


def private_apt(folder: Path) -> Path:
    """An apt configuration for arm64 that does not modify the machine's."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    configuration = folder / "apt.conf"
    configuration.write_text(
        'APT::Architecture "arm64";\nAPT::Architectures { "arm64"; };\nAPT::Sandbox::User "root";\n'
        f'Dir::State "{folder}/state";\nDir::State::status "/dev/null";\nDir::Cache "{folder}/cache";\n'
    )
    return configuration


def unpack(packages: list[Path], folder: Path) -> Path:
    """The files of packages below a folder."""
    for package in packages:
        run(["dpkg", "-x", package, folder])
    return folder


def fetch(pythons: Mapping[Minor, Path], work: Path) -> tuple[Minor, Path, Path]:
    """A version of Debian's Python that the machine also has, the root of its files, and qemu. Raises Missing."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Missing("apt-get and dpkg")
    qemu = unpack(download(work / "qemu-deb", None, "qemu-user-static"), work / "qemu") / "usr/bin/qemu-aarch64-static"
    run([qemu, "--version"])
    configuration, root = private_apt(work / "apt"), work / "root"
    for minor in sorted(pythons):
        names = PACKAGES.format(v=f"{minor[0]}.{minor[1]}").split()
        try:
            found = download(work / "debs", configuration, *names)
        except Missing:
            continue
        shutil.rmtree(root, ignore_errors=True)
        return minor, unpack(found, root), qemu
    raise Missing("an arm64 package of one of these Pythons")


def build(minor: Minor, python: Path, root: Path, source: Path, out: Path, work: Path) -> Path:
    """The wheel, repaired, in `out`."""
    tag = f"cp{minor[0]}{minor[1]}"
    headers = root / f"usr/include/python{minor[0]}.{minor[1]}"
    soabi = f"cpython-{minor[0]}{minor[1]}-aarch64-linux-gnu"
    builder = Builder(
        source,
        work,
        False,
        "aarch64",
        (
            f"cmake.define.Python_INCLUDE_DIR={headers}",
            f"cmake.define.Python_SOABI={soabi}",
            "cmake.define.PYBIND11_USE_CROSSCOMPILING=ON",  # otherwise it takes the suffix of the running Python
            f"cmake.define.PYTHON_MODULE_EXTENSION=.{soabi}.so",
            "cmake.define.PYTHON_MODULE_DEBUG_POSTFIX=",
            "cmake.define.PYTHON_IS_DEBUG=OFF",
            f"cmake.define.CMAKE_CXX_FLAGS=-isystem {root / 'usr/include'}",  # Debian's pyconfig.h is in a folder there
        ),
    )
    inner = new_environment(python, work / "env" / f"{tag}-aarch64", *build_requirements())
    os.environ |= {"_PYTHON_HOST_PLATFORM": "linux-aarch64", "SETUPTOOLS_EXT_SUFFIX": f".{soabi}.so"}
    try:
        wheel = builder.build(inner, tag)
    finally:
        del os.environ["_PYTHON_HOST_PLATFORM"], os.environ["SETUPTOOLS_EXT_SUFFIX"]
    return repair(wheel, out, work)


def try_wheel(wheel: Path, minor: Minor, root: Path, qemu: Path, work: Path) -> None:
    """Run it under qemu, with the aarch64 wheels of its dependencies."""
    site = work / "aarch64-site"
    shutil.rmtree(site, ignore_errors=True)
    version = f"{minor[0]}.{minor[1]}"
    newest = int(GLIBC.partition(".")[2])
    platforms = [*(f"manylinux_2_{n}_aarch64" for n in range(newest, 16, -1)), "manylinux2014_aarch64"]
    words = ["--target", site, "--only-binary=:all:", "--implementation", "cp", "--python-version", version]
    chosen = [word for platform in platforms for word in ("--platform", platform)]
    run([sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *words, *chosen, wheel])
    (extension,) = (site / "pycollective").glob("_core*.so")
    if "aarch64" not in extension.name:
        raise Failure(f"{extension.name} carries the suffix of another machine")
    environment = {**os.environ, "PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith("OPENBLAS")]:
        del environment[name]  # refers to a processor of this machine
    program = [qemu, "-L", root, root / f"usr/bin/python{version}"]
    for arguments in (["-c", SMOKE], ["-m", "pycollective", "verify", "ring", "--ranks", "2-4"]):
        run([*program, *arguments], env=environment, cwd=work)


def cross(pythons: Mapping[Minor, Path], source: Path, out: Path, work: Path) -> None:
    """Build and test it, or report in one line why not."""
    work = work / "aarch64"
    try:
        minor, root, qemu = fetch(pythons, work)
    except (Missing, OSError, subprocess.SubprocessError) as error:
        return report(f"no wheel for aarch64: {error} is missing")
    wheel = build(minor, pythons[minor], root, source, out, work)
    size = wheel.stat().st_size
    if size > MOST_BYTES["cpu"]:
        raise Failure(f"{wheel.name} has {size / 1e6:.2f} MB, more than {MOST_BYTES['cpu'] / 1e6:.0f}")
    try_wheel(wheel, minor, root, qemu, work)
    return report(f"{wheel.name}: {size / 1e6:.2f} MB, all element types and topologies right under qemu; not timed")

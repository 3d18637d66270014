"""Which interpreters `make wheels` finds, and what the wheels' kernels must choose."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from make_wheels import MOST_BYTES, Failure, best_level, chosen, interpreters

V3 = "pni ssse3 fma cx16 sse4_1 sse4_2 movbe popcnt avx f16c bmi1 avx2 bmi2 lahf_lm abm"
V4 = f"{V3} avx512f avx512dq avx512cd avx512bw avx512vl"


def program(folder: Path, name: str, answer: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{answer}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_one_working_cpython_of_each_version(tmp_path: Path) -> None:
    path, versions = tmp_path / "path", tmp_path / "versions"
    program(path, "python3.10", "echo 'pyenv: python3.10: command not found' >&2; exit 127")  # a shim
    program(path, "python3.11", "echo 3 11 0")  # without headers, or another implementation
    first = program(path, "python3.12", "echo 3 12 1")
    program(path, "python3.9", "echo 3 9 1")
    program(path, "python3.12-config", "echo 3 12 1")
    program(versions / "3.12.9/bin", "python3.12", "echo 3 12 1")
    ten = program(versions / "3.10.4/bin", "python3.10", "echo 3 10 1")
    program(versions / "3.13.0/bin", "python3.13", "echo 3 12 1")  # another version than its name
    searched = f"{path}:{tmp_path / 'missing'}"
    assert interpreters(searched, versions) == {(3, 10): ten, (3, 12): first}
    assert interpreters(searched, tmp_path / "missing") == {(3, 12): first}


def test_this_interpreter_is_found_by_asking_it(tmp_path: Path) -> None:
    name = f"python3.{sys.version_info[1]}"
    link = tmp_path / name
    link.symlink_to(Path(sys.base_prefix, "bin", name))
    expected = {sys.version_info[:2]: link} if Path(sys.base_prefix, "include", name, "Python.h").exists() else {}
    assert interpreters(str(tmp_path), tmp_path) == expected


def test_a_version_that_is_missing_is_named() -> None:
    found = {(3, 10): Path("a"), (3, 12): Path("b")}
    assert chosen(found, "") == found
    assert chosen(found, "3.12") == {(3, 12): Path("b")}
    assert chosen(found, "3.12, 3.10") == found
    assert chosen(found, "newest") == {(3, 12): Path("b")}
    assert chosen(found, "oldest newest") == found
    with pytest.raises(Failure, match=r"no CPython 3\.13 .*found: 3\.10, 3\.12"):
        chosen(found, "3.12 3.13")


@pytest.mark.parametrize(
    ("flags", "level"),
    [("sse2", "baseline"), (V3, "avx2"), (V4, "avx512"), (V4.replace("f16c ", ""), "baseline"),
     (V4.replace("avx512bw ", ""), "avx2")],
)  # fmt: skip
def test_best_level(flags: str, level: str) -> None:
    assert best_level(f"processor\t: 0\nflags\t\t: fpu {flags}\nbugs\t:\n") == level


def test_the_wheel_is_small() -> None:
    """The one that `make install` has built; those of `make wheels`, by another compiler, are a little larger."""
    built = sorted((Path(sys.prefix) / "core").glob("*.whl"))
    if not built:
        pytest.skip("needs an installation by `make install`")
    assert built[0].stat().st_size < 0.96 * MOST_BYTES["cpu"]

"""The table of settings: how values are read, and that no other variable is read."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import pycollective
from pycollective import _core, settings
from pycollective.engine import Settings

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = ["0", "3", "1.5", ".5", "1.", "+2", "1e3", "1E-3", "inf", "Infinity", "1e300", "1e400", "1e-400"]
NO_NUMBERS = ["soon", "3s", "-1", "-0", "nan", "0x10", "1_0", " 1", "1 ", "1e", "--1", "+-1", "1,5", "-inf", "1e-", "٣"]


def test_every_variable_that_is_read_is_in_the_table() -> None:
    """Every name with our prefix in the sources, in whatever way it is read."""
    files = [*(ROOT / "pycollective").rglob("*.py"), *(ROOT / "csrc").rglob("*.*"), *(ROOT / "bench").rglob("*.py")]
    name = re.compile(r"[\"'`](PYCOLLECTIVE_[A-Z_]+)[\"'`]")
    found = {match for file in files for match in name.findall(file.read_text())}
    named = {name for row in settings.TABLE.values() for name in (row.name, row.older)}
    assert found - {settings.PREFIX} == {name for name in named if name.startswith(settings.PREFIX)}


# The core reads its environment once per process.
IN_THE_CORE = """
import os, sys
from pycollective import _core
for text in sys.argv[2:]:
    sys.stdout.flush()
    if os.fork() == 0:
        os.environ[sys.argv[1]] = text
        try:
            print({name: value for name, _, value, _ in _core.settings()}[sys.argv[1]])
        except ValueError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
"""


def test_numbers_are_read_the_same_way_in_python_and_in_the_core(tmp_path: Path) -> None:
    name, texts = "PYCOLLECTIVE_SPIN_US", [*NUMBERS, *NO_NUMBERS]
    command = [sys.executable, "-c", IN_THE_CORE, name, *texts]
    # In another folder, to import the installed package and not the sources.
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    for text, core in zip(texts, done.stdout.splitlines(), strict=True):
        try:
            assert settings.read(name, {name: text}) == float(core)
            assert text in NUMBERS
        except ValueError as error:
            assert core == str(error) == f"{name}='{text}' is not a number of microseconds, at least 0"
            assert text in NO_NUMBERS


def test_the_core_has_the_defaults_of_the_table() -> None:
    rows = {name: (default, meaning) for name, default, _, meaning in _core.settings()}
    assert rows == {row.name: (row.default, row.meaning) for row in settings.TABLE.values() if row.field}


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("PYCOLLECTIVE_INIT_TIMEOUT", "0", "a number of seconds, above 0"),
        ("HOROVOD_CACHE_CAPACITY", "many", "a number, at least 0"),
        ("HOROVOD_STALL_CHECK_TIME", "-1", "a number of seconds, at least 0"),
        ("HOROVOD_AUTOTUNE", "maybe", "1, true, yes or on, or 0, false, no or off"),
        ("HOROVOD_LOG_LEVEL", "loud", "one of trace, debug, info"),
    ],
)
def test_errors_give_the_name_the_value_and_what_is_expected(name: str, text: str, expected: str) -> None:
    row = next(row for row in settings.TABLE.values() if name in (row.name, row.older))
    with pytest.raises(ValueError, match=f"^{name}='{text}' is not {re.escape(expected)}"):
        settings.read(row.name, {name: text})


def test_types_older_names_and_defaults() -> None:
    assert settings.read("HOROVOD_AUTOTUNE", {"HOROVOD_AUTOTUNE": "True"}) is True
    assert settings.read("HOROVOD_CACHE_CAPACITY", {"HOROVOD_CACHE_CAPACITY": "inf"}) == 10**15
    assert settings.read("PYCOLLECTIVE_TIMEOUT", {"PYCOLLECTIVE_TIMEOUT": ""}) == 300
    old, new = {"HOROVOD_STALL_CHECK_TIME": "5"}, {"HOROVOD_STALL_CHECK_TIME_SECONDS": "7"}
    assert Settings.read(old).stall_check_time == 5
    assert Settings.read(old | new).stall_check_time == 7
    assert Settings.read({"HOROVOD_CYCLE_TIME": "2"}).cycle_time == 2e-3
    assert Settings.read({}) == Settings()


def test_unknown_names_and_the_nearest_known_name() -> None:
    assert settings.unknown({"PYCOLLECTIVE_TIMEOUT": "1", "HOROVOD_SOMETHING": "1", "HOME": "/"}) == {}
    hints = settings.unknown({"PYCOLLECTIVE_STAGED_TILES": "1", "PYCOLLECTIVE_ZZZ": "1", "PYCOLLECTIVE_NCLL": "x"})
    assert hints["PYCOLLECTIVE_STAGED_TILES"].endswith("did you mean PYCOLLECTIVE_STAGED_TILE?")
    assert hints["PYCOLLECTIVE_NCLL"].endswith("did you mean PYCOLLECTIVE_NCCL?")
    assert hints["PYCOLLECTIVE_ZZZ"].endswith("has no effect; `pycollective doctor --settings` lists them all")
    assert settings.unknown({"PYCOLLECTIVE_ZZZ": "1", settings.WARNED: "PYCOLLECTIVE_ZZZ"}) == {}


def test_a_process_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", False)
    monkeypatch.setenv("PYCOLLECTIVE_TIMOUT", "3")
    with pytest.warns(RuntimeWarning, match=r"PYCOLLECTIVE_TIMOUT .* PYCOLLECTIVE_TIMEOUT\?") as caught:
        pycollective.local_world(1)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pycollective.local_world(1)


def test_the_build_writes_the_cores_rows_without_the_package(tmp_path: Path) -> None:
    header = tmp_path / "made" / "pc_settings.h"
    script = ROOT / "pycollective" / "settings.py"
    subprocess.run([sys.executable, "-I", "-S", str(script), str(header)], check=True, cwd=tmp_path)
    written = header.read_text()
    assert written == settings.header()
    assert 'X(timeout, "PYCOLLECTIVE_TIMEOUT", 300.0, "a number of seconds, at least 0", "seconds"' in written

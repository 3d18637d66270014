"""Run one step of the Makefile and report its progress: `python3 tools/step.py LABEL COMMAND...`.

pip and ninja print either nothing for minutes or pages. From their -v output, this shows a line for each package
and each compiled file, and a line every few seconds while nothing happens. Everything is written to build/log; if a
step fails, known causes are reported in one line with a remedy. Standard library only: nothing is installed yet.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

QUIET_SECONDS = 5.0
LAST_LINES = 25
LOGS = Path("build/log")

SHOWN = (
    (r"\[(\d+)/(\d+)\] .*?(?:\.dir/(\S*?)(?:\.cxx)?\.o|([^\s/]*))$", r"\1 of \2, \3\4"),
    (r"Downloading (\S+?)(?:-\d\S*)? \(([\d.]+ [kMG]B)\).*", r"downloading \1 (\2)"),
    (r"Installing collected packages: (.*)", r"unpacking \1"),
    (r"-- pycollective: (.*)", r"\1"),
)
"""Lines of ninja, pip and CMake, and what is shown of them."""

CAUSES = (
    (r"No space left on device", "the disk is full: free some space"),
    (r"Read-only file system", "the file system is read-only: use a clone in a folder that you can write to"),
    (r"ensurepip is not available|No module named '?(venv|ensurepip)",
     "this Python cannot make virtual environments: install its venv package (Debian: apt install python3-venv)"),
    (r"no working C\+\+ compiler was found|(c|g)\+\+: not found",
     "no working C++ compiler was found: install one (Debian: apt install g++) or set CXX to yours"),
    (r"header files were not found|Python\.h: No such file",
     "Python's header files are missing: install them (Debian: apt install python3-dev)"),
    (r"error: .*(c\+\+20|concept|bit_cast)|unrecognized command.line option .*std=c\+\+20",
     "the C++ compiler is too old: C++20 is needed (gcc 11 or clang 14)"),
    (r"NewConnectionError|Temporary failure in name resolution|Network is unreachable|Connection (refused|reset)|"
     r"ReadTimeoutError|Could not fetch URL|ProxyError|MaxRetryError",
     "the package index cannot be reached: check the network, or set PIP_INDEX_URL to an index that can"),
    (r"Killed signal|out of memory|Cannot allocate memory|MemoryError", "the machine has run out of memory"),
    (r"Permission denied", "a file cannot be written (permission denied): the last lines name it"),
)  # fmt: skip


class Report:
    """What is shown of a step: its lines, with the seconds since make started."""

    def __init__(self, label: str) -> None:
        self._label, self._latest = label, "working"
        self._begin = self._shown = time.time()
        self._since = float(os.environ.get("STEP_START") or self._begin)

    def show(self, text: str) -> None:
        self._shown = time.time()
        print(f"{max(0.0, self._shown - self._since):4.0f} s  {text}", flush=True)

    def read(self, line: str) -> None:
        """Show the content of a line of output, if relevant."""
        for pattern, text in SHOWN:
            if found := re.fullmatch(pattern, line.strip()):
                self._latest = found.expand(text)
                self.show(f"{self._label}: {self._latest}")

    def remind(self, ended: threading.Event) -> None:
        """Show the latest line again whenever nothing has been shown for a while."""
        while not ended.wait(QUIET_SECONDS / 5):
            if time.time() - self._shown >= QUIET_SECONDS:
                self.show(f"{self._label}: {self._latest}, {time.time() - self._begin:.0f} s so far")


def follow(command: list[str], log: Path, report: Report) -> int:
    """Run the command, whose output goes to the log and the report; returns its exit status."""
    ended = threading.Event()
    threading.Thread(target=report.remind, args=[ended], daemon=True).start()
    try:
        with (
            log.open("w") as file,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            ) as process,
        ):
            for line in process.stdout or ():
                file.write(line)
                report.read(line)
        return process.returncode
    finally:
        ended.set()


def cause(text: str) -> str:
    """The known cause of a failure, and the remedy; empty for others."""
    return next((advice for pattern, advice in CAUSES if re.search(pattern, text)), "")


def run(label: str, command: list[str]) -> int:
    """Run a step; returns its exit status."""
    log, report = LOGS / f"{re.sub('[^a-z0-9]+', '-', label.lower())}.log", Report(label)
    report.show(label)
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        status = follow(command, log, report)
        text = log.read_text()
    except OSError as error:
        status, text = 1, f"{command[0]}: {error}"
    if status == 0:
        return 0
    print(*text.splitlines()[-LAST_LINES:], sep="\n", file=sys.stderr)
    known = cause(text) or f"exit status {status}; all of its output is in {log}"
    print(f"\n{label} failed: {known}. The next run resumes here.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1], sys.argv[2:]))

"""Run one step of the Makefile and report its progress: `python3 tools/step.py LABEL COMMAND...`.

pip and ninja print either nothing for minutes or pages. From their -v output, this shows a line for each package
and each compiled file, and a line every few seconds while nothing happens. Everything is written to build/log; if a
step fails, known causes are reported in one line with a remedy. Standard library only: nothing is installed yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

QUIET_SECONDS = 5.0
LAST_LINES = 25
LOGS = Path("build/log")

_COMPILED = re.compile(r"^\s*\[(\d+)/(\d+)\] (.*)")
_PACKAGE = re.compile(r"^\s*Collecting ([\w.\[\]-]+)")
_DOWNLOAD = re.compile(r"^\s*Downloading (\S+?)(?:-\d\S*)? \(([\d.]+ [kMG]B)\)")
_NOTICE = re.compile(r"^\s*-- pycollective: (.*)")
_INSTALLING = re.compile(r"^\s*Installing collected packages: (.*)")

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


class Progress:
    """The progress shown for a step's output."""

    def __init__(self, label: str, shown: Path) -> None:
        """`shown`: a file that concurrent steps touch with every line."""
        self.label, self.done, self._shown = label, "", shown
        self.start = time.monotonic()
        self._since = float(os.environ.get("STEP_START") or time.time())

    def show(self, text: str) -> None:
        elapsed = max(0.0, time.time() - self._since)
        print(f"{elapsed:4.0f} s  {text}", flush=True)
        with contextlib.suppress(OSError):
            self._shown.touch()

    def quiet(self) -> float:
        """Seconds since any step has shown a line."""
        try:
            return time.time() - self._shown.stat().st_mtime
        except OSError:
            return QUIET_SECONDS

    def read(self, line: str) -> None:
        """Show the content of a line of output, if relevant."""
        if found := _COMPILED.match(line):
            self.done = f"{found[1]} of {found[2]}"
            self.show(f"{self.label}: {self.done}, {_subject(found[3])}")
        elif found := _DOWNLOAD.match(line):
            self.show(f"{self.label}: downloading {found[1]} ({found[2]})")
        elif found := _NOTICE.match(line):
            self.show(found[1])
        elif found := _PACKAGE.match(line):
            self.done = found[1]  # not shown: several a second
        elif found := _INSTALLING.match(line):
            packages = found[1].split(", ")
            self.done = f"unpacking {len(packages)} packages"
            self.show(f"{self.label}: {self.done}")

    def wait(self) -> None:
        """Called when nothing has happened for a while."""
        self.show(f"{self.label}: {self.done or 'working'}, {time.monotonic() - self.start:.0f} s so far")


def _subject(command: str) -> str:
    """The subject of a line of ninja: the source, or the link target."""
    last = command.rstrip().split(" ")[-1]
    found = re.search(r"\.dir/(.*?)(\.cxx)?\.o$", last)
    return found[1] if found else last.rsplit("/", 1)[-1]


def lines(process: subprocess.Popen[bytes], progress: Progress) -> Iterator[str]:
    """The lines of the output as they arrive, with progress messages in between."""
    assert process.stdout is not None
    selector = selectors.DefaultSelector()
    selector.register(process.stdout, selectors.EVENT_READ)
    rest = b""
    while True:
        ready = selector.select(max(0.1, QUIET_SECONDS - progress.quiet()))
        chunk = os.read(process.stdout.fileno(), 65536) if ready else None
        if chunk == b"":
            break
        *complete, rest = (rest + (chunk or b"")).split(b"\n")
        for each in complete:
            line = each.decode(errors="replace")
            yield line
            progress.read(line)
        if progress.quiet() >= QUIET_SECONDS:
            progress.wait()
    if rest:
        yield rest.decode(errors="replace")


def cause(text: str) -> str:
    """The known cause of a failure, and the remedy; empty for others."""
    return next((advice for pattern, advice in CAUSES if re.search(pattern, text)), "")


def run(label: str, command: list[str]) -> int:
    """Run the command; returns its exit status."""
    log = LOGS / f"{re.sub('[^a-z0-9]+', '-', label.lower())}.log"
    progress = Progress(label, LOGS / "shown")
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        progress.show(label)
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            for line in lines(process, progress):
                print(line, file=file)
            status = process.wait()
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

"""What the launcher passes on of its ranks' output: whole lines, and parts of lines after a moment."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import CLI
from pycollective.cli.launch.output import Pipe, Screen


class Terminal:
    """Two ranks whose pipes end at one terminal."""

    def __init__(self) -> None:
        self.sink, screen = io.BytesIO(), Screen()
        self._writers: list[int] = []
        self.pipes: list[Pipe] = []
        for rank in range(2):
            reader, writer = os.pipe()
            self._writers.append(writer)
            self.pipes.append(Pipe(b"[%d] " % rank, os.fdopen(reader, "rb"), self.sink, screen))

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            os.close(writer)
        for pipe in self.pipes:
            pipe.source.close()

    def write(self, rank: int, text: bytes, pause: bool = False) -> bytes:
        """The terminal's content after a rank has written, and perhaps made a pause."""
        os.write(self._writers[rank], text)
        self.pipes[rank].pump()
        if pause:
            self.pipes[rank].settle(time.monotonic() + 1)
        return self.sink.getvalue()


def test_a_question_is_shown_before_it_is_answered() -> None:
    with Terminal() as terminal:
        assert terminal.write(0, b"Delete? ") == b""
        terminal.pipes[0].settle(time.monotonic())
        assert terminal.sink.getvalue() == b"", "more of the line may follow at once"
        terminal.pipes[0].settle(time.monotonic() + 1)
        assert terminal.sink.getvalue() == b"[0] Delete? "
        assert terminal.write(0, b"yes\nnext\n") == b"[0] Delete? yes\n[0] next\n"


def test_a_bar_moves() -> None:
    with Terminal() as terminal:
        assert terminal.write(0, b"10% #\r20% ##\r") == b"[0] 10% #\r[0] 20% ##\r"
        assert terminal.write(0, b"30%", pause=True) == b"[0] 10% #\r[0] 20% ##\r[0] 30%"
        assert terminal.write(0, b" ###\n").endswith(b"[0] 30% ###\n")
        assert terminal.write(0, b"a\r\nb\n").endswith(b"[0] a\r\n[0] b\n")


def test_a_long_line_takes_no_longer_than_many() -> None:
    with Terminal() as terminal:
        for _ in range(40):
            terminal.write(0, b"x" * 50_000)
        assert terminal.write(0, b"\n") == b"[0] " + b"x" * 2_000_000 + b"\n"


def test_another_rank_does_not_tear_a_line() -> None:
    with Terminal() as terminal:
        terminal.write(0, b"first ", pause=True)
        assert terminal.write(1, b"other\n") == b"[0] first \n[1] other\n"
        assert terminal.write(0, b"second\n") == b"[0] first \n[1] other\n[0] second\n"


def test_the_last_line_is_completed() -> None:
    with Terminal() as terminal:
        terminal.write(0, b"end")
        os.close(terminal._writers[0])
        assert not terminal.pipes[0].pump()
        assert terminal.sink.getvalue() == b"[0] end\n"
        terminal._writers[0] = os.open(os.devnull, os.O_WRONLY)


PIECES = st.tuples(st.integers(0, 1), st.text("ab\n", min_size=1, max_size=6), st.booleans())


@given(st.lists(PIECES, max_size=30))
def test_nothing_is_lost_and_each_line_is_of_one_rank(pieces: list[tuple[int, str, bool]]) -> None:
    with Terminal() as terminal:
        for rank, text, pause in pieces:
            terminal.write(rank, text.encode(), pause)
        for pipe in terminal.pipes:
            pipe.settle(time.monotonic() + 1)
        shown = terminal.sink.getvalue().decode()
    for rank in (0, 1):
        written = "".join(text for writer, text, _ in pieces if writer == rank)
        lines = [line for line in shown.split("\n") if line]
        assert all(line.startswith(("[0] ", "[1] ")) for line in lines), shown
        own = "".join(line[4:] for line in lines if line.startswith(f"[{rank}] "))
        assert own == written.replace("\n", ""), shown


@pytest.mark.parametrize("options", [["-np", "1", "--tag"], ["-H", "a:1", "--rsh", "sh ./rsh", "--tag"]])
def test_a_question_through_the_launcher(options: list[str], tmp_path: Any) -> None:
    (tmp_path / "rsh").write_text('shift\nexec sh -c "$*"\n')
    code = "import time; print('Delete? ', end='', flush=True); time.sleep(600)"
    command = [*CLI, "run", *options, sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout.read(len("[0] Delete? ")) == b"[0] Delete? "
        process.terminate()

"""Control messages between ranks: typed, and decoding them executes no code."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pycollective
from pycollective import _core, errors
from pycollective.comm.control import Codec, Fault
from pycollective.engine import Item, Settings
from pycollective.engine.rounds import RoundMessage


class Special(errors.MismatchError):
    """A caller's class, unknown to the other ranks."""


FAULTY = [errors.PeerLostError("rank 3 is gone", 3), errors.TimeoutError("late"), errors.Error("wrong"), Special("odd")]


@pytest.mark.parametrize("error", FAULTY, ids=lambda error: type(error).__name__)
def test_errors_arrive_as_they_were_sent(error: errors.Error) -> None:
    codec: Codec[Fault] = Codec(Fault)
    received = codec.decode(codec.encode(Fault.of(error)), 0).error()
    assert type(received) is (errors.MismatchError if isinstance(error, Special) else type(error))
    assert str(received) == str(error)
    assert getattr(received, "rank", None) == getattr(error, "rank", None)


@pytest.mark.parametrize("kind", ["Error", "builtins", "SystemExit", "__class__", "annotations", ""])
def test_an_error_of_an_unknown_class_is_still_an_error(kind: str) -> None:
    assert isinstance(Fault(kind, "text").error(), errors.Error)


class Malice:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", [Fault, RoundMessage, Settings, dict[str, tuple[tuple[int, ...], str]], list[int]])
def test_invalid_bytes_are_an_error_that_names_the_sender(kind: Any, tmp_path: Path) -> None:
    codec: Codec[Any] = Codec(kind)
    junk = [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, codec.encode(["?", 1]), os.urandom(50)]
    for data in [*junk, pickle.dumps(Malice(tmp_path / "made"))]:
        with pytest.raises(errors.CommunicatorError, match="of rank 5 cannot be decoded"):
            codec.decode(data, 5)
    assert not list(tmp_path.iterdir())


def test_settings_and_rounds_arrive_as_they_were_sent() -> None:
    settings = replace(Settings(autotune=True, topology="ring"), cycle_time=2, stall_check_time=float("inf"))
    codec: Codec[Settings] = Codec(Settings)
    assert codec.decode(codec.encode(settings), 0) == settings
    x = np.ones((2, 3), np.float32)
    announced = _core.announcements([Item("allreduce", name, x, x) for name in "ab"], 4)
    sent = RoundMessage([*announced, 7], (1 << 40, 0.25), True, Fault("Error", "text"), [("a", "an error")])
    rounds: Codec[RoundMessage] = Codec(RoundMessage)
    assert rounds.decode(rounds.encode(sent), 0) == sent


def test_pickle_is_only_used_for_objects_of_users() -> None:
    """Object collectives, functions for horovod.run, elastic commits in private files, a benchmark's results."""
    root = Path(pycollective.__file__).parent
    found = {str(file.relative_to(root)) for file in root.rglob("*.py") if "import pickle" in file.read_text()}
    # Present in an installed package, not in the sources; the course's data are files whose checksums were verified.
    found -= {"bench/ranks/world.py", "examples/course/data.py"}
    assert found == {"comm/objects.py", "horovod/launching.py", "horovod/task.py", "hvd/elastic/state.py"}

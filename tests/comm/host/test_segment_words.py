"""Waiting for a word of shared memory, as torch.distributed's receives do for announcements."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from pycollective import _core


def test_a_wait_ends_when_one_of_its_words_changes() -> None:
    segment = _core.Segment.create("local", 4096)
    words = np.frombuffer(segment, np.uint64)
    assert not segment.await_change([(3, 0), (511, 0)], 0.01)
    assert segment.await_change([(3, 0), (511, 1)], 60)  # it differs already

    def write() -> None:
        time.sleep(0.05)
        words[511] = 7

    writer = threading.Thread(target=write)
    writer.start()  # it runs Python: the wait must have released the interpreter
    assert segment.await_change([(3, 0), (511, 0)], 60)
    writer.join()


def test_a_word_outside_of_the_segment_is_refused() -> None:
    segment = _core.Segment.create("local", 4096)
    with pytest.raises(ValueError, match="word 512 of a segment of 4096 bytes"):
        segment.await_change([(512, 0)], 0)

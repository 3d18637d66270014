"""The worker's end of a Task (task.py): what it is to call, and the result."""

from __future__ import annotations

import os
from collections.abc import Callable

from pycollective import settings
from pycollective.comm.bootstrap import elastic


def run_task(make: Callable[[bytes], bytes]) -> None:
    """Fetch this worker's task from its driver, call `make` with it, and hand in what that returns.

    Raises:
        BootstrapError: the driver cannot be reached. RuntimeError: the job has ended. What `make` raises.
    """
    seconds = float(settings.read("PYCOLLECTIVE_INIT_TIMEOUT"))
    driver = elastic.connect(os.environ, seconds)
    result = make(driver.fetch_task())
    if elastic.newest() is None:  # the call has not asked for a rank
        elastic.join(os.environ, seconds)
    driver.hand_in(result)
    driver.leave()

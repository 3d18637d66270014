"""Run checks of a package of Keras on several ranks, many in one process: a script that the tests start.

python run_checks.py NAME...    the environment chooses the backend; prints a line of JSON for each check
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from typing import Any

import model_checks
import refusal_checks
import step_checks
import training_checks
from common import hvd

CHECKS: dict[str, Any] = {}
for topic in (training_checks, step_checks, model_checks, refusal_checks):
    CHECKS |= vars(topic)

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    hvd.init()
    for name in sys.argv[1:]:
        try:
            CHECKS[name]()
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        print(json.dumps([name, outcome]), flush=True)
    hvd.shutdown()

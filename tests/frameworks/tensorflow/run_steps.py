"""Run parts of this folder's checks in one process of each rank, as importing TensorFlow takes 5 s.

python run_steps.py RANKS PART...    prints a line of JSON for each part: its name and what it found
"""

from __future__ import annotations

import json
import sys

import collective_steps
import ending_steps
import graph_call_steps

PARTS = {
    "graph_calls": graph_call_steps.outcomes,
    "collectives": collective_steps.outcomes,
    "killed": ending_steps.killed,
    "elastic": ending_steps.elastic,
    "left": ending_steps.left,
}

if __name__ == "__main__":
    for part in sys.argv[2:]:
        print(json.dumps([part, PARTS[part]()]), flush=True)

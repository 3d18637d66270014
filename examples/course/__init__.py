"""The labs of the course, each started as `python examples/course/NAME.py` or `python -m examples.course.NAME`."""

import sys
from pathlib import Path

if sys.argv[0] == "-m":  # as for a script: first the labs' folder, not the clone's, whose package is not compiled
    sys.path[0] = str(Path(__file__).parent)

"""`pycollective draw`: a compiled schedule as a picture (see schedule/drawing.py)."""

from __future__ import annotations

import sys
from pathlib import Path

from pycollective.errors import Error
from pycollective.schedule import Placement, compile

FORMATS = (".png", ".svg", ".pdf")


def draw(where: str, out: Path, ranks: int, collective: str, root: int, small: bool) -> int:
    """The command: draw one collective of one topology, compiled for window arrays, into `out`; 2 when it cannot."""
    from pycollective.cli.verify import find, place
    from pycollective.schedule import drawing

    try:
        found = find(where)
        if len(found) != 1:
            raise Error(f"{where} names {len(found)} topologies; add :NAME or draw one of them")
        if out.suffix not in FORMATS:
            raise Error(f"{out}: write one of {', '.join(FORMATS)}")
        drawing.draw(compile(found[0], collective, ranks, root, Placement.WINDOW, small), out)
    except ImportError as error:
        print(f"✗ {error}; drawing needs matplotlib: pip install 'pycollective[plot]'", file=sys.stderr)
        return 2
    except (Error, ValueError, OSError, SyntaxError) as error:
        print(f"✗ {error}", file=sys.stderr)
        return 2
    except Exception as error:  # a user's topology may raise anything
        print(f"✗ {where}: {type(error).__name__}: {error}{place(error)}", file=sys.stderr)
        return 2
    print(out)
    return 0

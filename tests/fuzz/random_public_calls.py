"""Makes random calls to public functions: python -m fuzz.random_public_calls SURFACE.SEED BLOCKS NOTE FIRST

A call may return, or raise an error that names the wrong argument (or is of this package's own classes): not an
error from deep inside code that did not expect its input. Arrays of a refused call are unchanged. Any other ending
is printed, one line per call.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import re
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import pycollective
from fuzz import random_inputs
from fuzz.random_driver import Note, make_blocks
from fuzz.random_inputs import Inputs, content
from fuzz.random_surfaces import SURFACES
from pycollective import Error

HOME = os.path.dirname(pycollective.__file__)
CALLS = 25
"""Calls per block, between two new worlds."""
MEMORY = 16 << 30
REFUSALS = (TypeError, ValueError, OverflowError, BufferError, MemoryError, OSError, RuntimeError)
"""Errors that a call may raise. IndexError, KeyError etc. come from code that did not expect the input."""


def make_call(name: str, function: Callable[..., Any], pick: Inputs, note: Note) -> str | None:
    """One call; returns what is wrong with its outcome, if anything."""
    parameters = inspect.signature(function).parameters
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for p in parameters.values():
        if p.kind is p.VAR_POSITIONAL or p.kind is p.VAR_KEYWORD or (p.default is not p.empty and pick.chance(0.5)):
            continue
        value = pick.of(p.name, str(p.annotation))
        if p.kind is p.KEYWORD_ONLY or len(positional) < list(parameters).index(p.name):
            named[p.name] = value
        else:
            positional.append(value)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and name.startswith("comm."):
        for option in ("op", "topology", "prescale", "postscale", "name", "timeout", "stream", "max_channels", "odd"):
            if pick.chance(0.07):
                named[option] = pick.of(option, "")
    note(f"{name}({', '.join([shown(v) for v in positional] + [f'{k}={shown(v)}' for k, v in named.items()])})")
    given = [*positional, *named.values()]
    arrays = [(array, before) for array in flat(given) if (before := content(array)) is not None]
    try:
        made = function(*positional, **named)
        if isinstance(made, types.GeneratorType):
            list(itertools.islice(made, 3))
    except REFUSALS as error:
        words = str(error)
        if any(content(array) != before for array, before in arrays):
            return f"changed an array, and then raised {error!r:.300}"
        if isinstance(error, (Error, MemoryError)) and words.strip():
            return None
        if isinstance(error, OSError) and error.filename is not None:
            return None
        wanted = [*parameters, *named, "element type", "operator"] + ["root", "peer"] * name.startswith("dist.")
        named_one = any(re.search(rf"\b{re.escape(each)}\b", words) for each in wanted)
        if not named_one and is_ours(error) and not is_meant(error):
            trace = "".join(traceback.format_tb(error.__traceback__)[-2:])
            return f"raised {error!r:.300}: names no argument:\n{trace}"
    except Exception as error:
        meant = isinstance(error, KeyError) and "must have the keys" in str(error)
        stray = isinstance(error, AssertionError) and "not compiled with CUDA" not in str(error)  # torch's refusal
        if stray or (is_ours(error) and not meant):
            return f"raised {error!r:.300}:\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
    return None


def shown(value: Any) -> str:
    try:
        return f"{value!r:.120}"
    except Exception:
        return f"<{type(value).__name__}>"


def flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from flat(value)
        else:
            yield value


def is_ours(error: BaseException) -> bool:
    """Whether the error came through this package: torch checks much itself, with its own messages."""
    frames = traceback.extract_tb(error.__traceback__)
    if frames[-1].filename == random_inputs.__file__ or hasattr(error, "failed_rank"):
        return False  # from a foreign object, or from a function that ranks run
    return len(frames) == 1 or any(frame.filename.startswith(HOME) for frame in frames)


def is_meant(error: BaseException) -> bool:
    """Whether a `raise` statement of this package raised the error, with its own message."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename.startswith(HOME) and (frames[-1].line or "").startswith("raise ")


def main(argument: str, blocks: int, path: str, first: int) -> None:
    surface, _, seed = argument.partition(".")

    def block(number: int, note: Note) -> None:
        pick = Inputs(f"{seed}/{number}")
        with SURFACES[surface](pick) as targets:
            for _ in range(CALLS):
                name, function = pick.one(targets)
                calls: list[str] = []

                def note_call(text: str, calls: list[str] = calls) -> None:
                    calls.append(text)
                    note(text)

                with contextlib.redirect_stdout(sys.stderr):
                    wrong = make_call(name, function, pick, note_call)
                if wrong is not None:
                    print(f"{number} {calls[-1]}: {wrong}".replace("\n", " | "), flush=True)

    make_blocks(block, blocks, path, first, MEMORY)
    os._exit(0) if surface == "c10d" else None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))

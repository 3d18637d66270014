"""A griffe extension (griffe reads the package for the site): splits docstring entries for several names.

`rank, size: position among the ranks, and their number.` is a common style; griffe takes "size" for rank's type.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_SECTION = re.compile(r"^( *)(?:Args|Attributes):\n(?:\1 +.*(?:\n|$)|\n)*", re.MULTILINE)
_JOINT = re.compile(r"^( +)([a-z_]\w*(?:, [a-z_]\w*)+): ", re.MULTILINE)


class JointNames(griffe.Extension):  # type: ignore[misc]
    """Gives each name its own entry; all but the last refer to the last."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every object."""
        if obj.docstring:
            obj.docstring.value = _SECTION.sub(lambda found: _JOINT.sub(_split, found[0]), obj.docstring.value)


def _split(found: re.Match[str]) -> str:
    *others, last = found[2].split(", ")
    return "".join(f"{found[1]}{name}: see `{last}`.\n" for name in others) + f"{found[1]}{last}: "

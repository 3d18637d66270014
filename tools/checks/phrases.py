"""Finds phrases that a native engineer would not write, and exits with 1 if there are any.

python tools/checks/phrases.py [FILE or FOLDER...]

PATTERNS has each phrase with what the field writes instead. Sources, documents and build files are searched, code
included, because names are words. ALLOWED has the hits that are right, with the reason.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]

PATTERNS = {
    r"(?:is|are|was|were|be|been) through\b(?! (?:the|a|which|it|host|shared|MPI|NCCL))": "has completed",
    r"l(?:ie|ies|ay|ain|ying)\b": "is stored in, is located in, is in",
    r"(?:say|says|said|saying)\b": "reports, states, specifies",
    r"(?:is|are|was|were) (?:not )?to be had": "is unavailable",
    r"goes? (?:its|their) way": "takes the ... path",
    r"whoever": "the rank (thread, caller) that",
    r"in vain": "without success",
    r"under way": "in progress",
    r"lets? go of|letting go of|lets? it go": "releases, frees",
    r"hears? (?:of|from)|heard (?:of|from)": "receives, learns",
    r"nothing but": "only",
    r"as good as": "equivalent to",
    r"by way of": "through, by",
    r"in the midst": "during",
    r"at an end": "has ended",
    r"(?:is|are) at hand": "is available",
    r"for ever\b": "forever, indefinitely",
    r"none of (?:our|its|their) business|nobody's (?:business|affair)|own affair": "does not matter to",
    r"hands? (?:round|on|back|out)|handed (?:round|on|back|out)": "passes, returns, distributes",
    r"anew\b": "again",
    r"(?<=\"\"\")(?:of|the same)\b": "a verb or a noun, as the first word of a docstring",
    r"told apart|tells? .{1,12} apart": "distinguished",
    r"comes? of it": "results",
    r"once all is well": "after success",
    r"(?:has|have) come (?:for|to|as|so)\b": "has arrived, has reached",
    r"lives? on\b": "remains, is on",
    r"goes? on\b|go on (?:with|to|without)": "continues",
    r"lie(?:s)? alike|alike\b": "the same, equally",
}
"""A regular expression, searched without regard to case at the beginning of a word -> what to write."""

ALLOWED = {
    ("LICENSE", "*"): "the license's own words",
    ("CHANGELOG.md", "*"): "history",
    ("tools/checks/phrases.py", "*"): "the list itself",
    ("tests/house/test_phrases.py", "*"): "examples of hits",
}
"""(File, text of the hit in lower case, or *) -> why it stays."""

_SUFFIXES = {".py", ".pyi", ".md", ".h", ".cpp", ".cu", ".cmake", ".txt", ".toml", ".sh", ".yml", ".yaml", ".cff", ""}
_SEARCHED = re.compile(r"\b(?:" + "|".join(f"({pattern})" for pattern in PATTERNS) + ")", re.IGNORECASE)


def files(names: list[str]) -> Iterator[Path]:
    """Text files that git knows, under some paths or anywhere."""
    listed = subprocess.run(["git", "ls-files", "--", *names], cwd=HOME, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = HOME / name
        if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink():
            yield path


def hits(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, text and what to write instead, of each hit that is not allowed."""
    name = path.relative_to(HOME).as_posix()
    if (name, "*") in ALLOWED:
        return
    advice = list(PATTERNS.values())
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        for match in _SEARCHED.finditer(line):
            text = match[0].lower()
            if (name, text) not in ALLOWED:
                yield number, match[0], advice[(match.lastindex or 1) - 1]


def main(names: list[str]) -> int:
    """Exit status 1 if there is a hit."""
    count = 0
    for path in files(names):
        for number, text, instead in hits(path):
            print(f"{path.relative_to(HOME)}:{number}: {text!r}: rather {instead}")
            count += 1
    print(f"{count} phrases to mend" if count else "no phrase of the list")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
